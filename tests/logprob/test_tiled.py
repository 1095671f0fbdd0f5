"""The streaming pass against float64 from full logits."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from grpo_guard.logprob.kernels.head import Head, HeadError
from grpo_guard.logprob.kernels.penalty import RepetitionPenalty
from grpo_guard.logprob.kernels.reference import reference_stats
from grpo_guard.logprob.kernels.support import edge_gaps
from grpo_guard.logprob.kernels.tiled import row_stats
from grpo_guard.sampling import SamplingSpec

EXACT = ("rank", "in_set")
CLOSE = {
    "logprob": 1e-4,
    "max_logprob": 1e-4,
    "mass_above": 1e-6,
    "tail_mass": 1e-6,
    "entropy": 1e-4,
    "log_set_mass": 1e-4,
    "log_flat_mass": 1e-4,
    "logit": 1e-4,
}


def spec_of(**changes):
    return SamplingSpec(
        **{"engine": "transformers", "temperature": 1.0, "top_k": 0, "top_p": 1.0, **changes}
    )


def random_case(seed, rows=9, vocab=300, width=16, scale=3.0):
    """Integer-valued states and weights, so that both sides compute the very same logits."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randint(-4, 5, (rows, width), generator=generator).float()
    weight = torch.randint(-4, 5, (vocab, width), generator=generator).float()
    targets = torch.randint(0, vocab, (rows,), generator=generator)
    return hidden, Head(weight, scale=scale / 64), targets


def reference_of(hidden, head, targets, spec, seen=None):
    logits = (hidden.double() @ head.weight.double().T * head.scale).numpy()
    return reference_stats(logits, targets.numpy(), spec, seen)


def assert_matches(stats, expected):
    for name in EXACT:
        np.testing.assert_array_equal(getattr(stats, name).numpy(), getattr(expected, name))
    for name, tolerance in CLOSE.items():
        np.testing.assert_allclose(
            getattr(stats, name).double().numpy(),
            getattr(expected, name),
            atol=tolerance,
            err_msg=name,
        )


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    vocab=st.integers(2, 400),
    tile=st.integers(1, 500),
    temperature=st.sampled_from([0.05, 0.3, 1.0, 2.0, 5.0]),
    top_k=st.sampled_from([0, 1, 7, 300, 5000]),
)
def test_any_tiling_gives_the_reference_statistics(seed, vocab, tile, temperature, top_k):
    hidden, head, targets = random_case(seed, vocab=vocab)
    stats = row_stats(hidden, head, targets, temperature=temperature, top_k=top_k, tile=tile)
    spec = spec_of(temperature=temperature, top_k=top_k)
    assert_matches(stats, reference_of(hidden, head, targets, spec))


def test_a_duplicate_of_the_target_does_not_outrank_it():
    weight = torch.ones(50, 8)  # every logit ties with every other
    stats = row_stats(torch.ones(1, 8), Head(weight), torch.tensor([17]), temperature=1.0, tile=7)
    assert stats.rank.item() == 0
    assert stats.mass_above.item() == 0
    assert stats.tail_mass.item() == pytest.approx(1.0)


def test_a_tail_of_1e_minus_12_keeps_its_digits():
    weight = torch.zeros(1000, 1)
    weight[3] = 34.5388  # exp(-34.5388) = 1e-15, times 999 tokens
    stats = row_stats(torch.ones(1, 1), Head(weight), torch.tensor([5]), temperature=1.0)
    assert stats.tail_mass.item() == pytest.approx(999e-15, rel=1e-3)


def test_tokens_at_minus_infinity_are_no_nan():
    weight = torch.zeros(8, 1)
    bias = torch.tensor([0.0, 0, 0, 0, -torch.inf, -torch.inf, -torch.inf, -torch.inf])
    stats = row_stats(
        torch.ones(2, 1), Head(weight, bias), torch.tensor([0, 5]), temperature=1.0, tile=2
    )
    assert stats.logprob[0].item() == pytest.approx(-np.log(4))
    assert stats.logprob[1].item() == -np.inf
    assert not any(torch.isnan(column).any() for column in stats)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6), penalty=st.sampled_from([0.5, 2.0]))
def test_the_repetition_penalty_counts_prompt_and_prefix(seed, penalty):
    rng = np.random.default_rng(seed)
    hidden, head, _ = random_case(seed, rows=10, vocab=40)
    sequences = [
        (rng.integers(0, 40, 5).tolist(), rng.integers(0, 40, 4).tolist()),
        (rng.integers(0, 40, 3).tolist(), rng.integers(0, 40, 6).tolist()),
    ]
    seen = np.zeros((10, 40), dtype=bool)  # penalties are powers of two: ties stay ties
    row = 0
    for prompt, completion in sequences:
        for t in range(len(completion)):
            seen[row, prompt + completion[:t]] = True
            row += 1
    targets = torch.tensor([t for _, completion in sequences for t in completion])
    spec = spec_of(repetition_penalty=penalty, temperature=0.7, top_k=7)
    rule = RepetitionPenalty.of(penalty, sequences, 40, torch.device("cpu"))
    stats = row_stats(hidden, head, targets, temperature=0.7, top_k=7, penalty=rule, tile=11)
    expected = reference_of(hidden, head, targets, spec, seen)
    assert_matches(stats, expected)
    gaps = edge_gaps(hidden, head, stats, spec, penalty=rule)
    np.testing.assert_allclose(gaps.double().numpy(), expected.edge_gap, atol=1e-4)


@settings(deadline=None, max_examples=150)
@given(
    seed=st.integers(0, 10**6),
    engine=st.sampled_from(["transformers", "vllm", "sglang"]),
    temperature=st.sampled_from([0.5, 1.0, 1.5]),
    top_k=st.sampled_from([0, 1, 5, 20, 10_000]),
    top_p=st.sampled_from([0.3, 0.8, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.02, 0.3]),
)
def test_the_gap_to_the_support_is_exact_for_every_engine(
    seed, engine, temperature, top_k, top_p, min_p
):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(12, 8, generator=generator)
    head = Head(torch.randn(200, 8, generator=generator))
    targets = torch.randint(0, 200, (12,), generator=generator)
    targets[:4] = (hidden[:4] @ head.weight.T).argmax(-1)  # some surely inside
    spec = SamplingSpec(engine, temperature, top_k, top_p, min_p)
    stats = row_stats(hidden, head, targets, temperature=temperature)
    gaps = edge_gaps(hidden, head, stats, spec).double().numpy()
    expected = reference_of(hidden, head, targets, spec).edge_gap
    np.testing.assert_array_equal(gaps > 0, expected > 0)
    if min_p == 0:
        np.testing.assert_allclose(gaps, expected, atol=1e-4)
    else:  # min-p cuts between tokens: its edge lies at or below the lowest token that is kept
        assert (gaps <= expected + 1e-4).all()


def test_a_margin_on_top_p_widens_the_nucleus_but_never_switches_it_off():
    head = Head(torch.log(torch.tensor([[0.5], [0.3], [0.15], [0.05]])))
    hidden, targets = torch.ones(4, 1), torch.arange(4)
    spec = spec_of(top_p=0.79)
    stats = row_stats(hidden, head, targets, temperature=1.0)
    assert (edge_gaps(hidden, head, stats, spec) > 0).tolist() == [False, False, True, True]
    wide = edge_gaps(hidden, head, stats, spec, mass_margin=0.02)
    assert (wide > 0).tolist() == [False, False, False, True]
    assert (edge_gaps(hidden, head, stats, spec, mass_margin=0.9)[3] > 0).item()


@pytest.mark.parametrize(("scale", "softcap"), [(0.25, None), (1.0, 2.0), (3.0, 5.0)])
def test_logit_transforms_apply_to_tile_and_target_alike(scale, softcap):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(30, 4, generator=generator)
    hidden = torch.randn(6, 4, generator=generator)
    head = Head(weight, torch.randn(30, generator=generator), scale, softcap)
    targets = torch.arange(6)
    full = head.logits(hidden, 0, 30)
    expected = full.gather(1, targets[:, None])[:, 0]
    torch.testing.assert_close(head.target_logits(hidden, targets), expected)
    if softcap:
        assert full.abs().max() <= softcap


def test_a_head_that_is_not_linear_is_refused_with_its_name():
    class Odd(nn.Linear):
        pass

    class Model(nn.Module):
        def get_output_embeddings(self):
            return Odd(4, 8)

    with pytest.raises(HeadError, match="got Odd"):
        Head.of(Model())
