"""The streaming pass against float64 from full logits."""

from dataclasses import fields
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.logprob.kernels import tiled as tiles
from grpo_guard.logprob.kernels.head_stats import head_stats
from grpo_guard.logprob.kernels.scores import (
    ForeignHead,
    Head,
    HeadError,
    HeadScores,
    LogitScores,
    RepetitionPenalty,
    head_of,
)
from grpo_guard.logprob.kernels.statistics import COUNTS, Partial, RowStats
from grpo_guard.logprob.kernels.support import edge_gaps, whole_rows
from grpo_guard.logprob.kernels.tiled import row_stats
from grpo_guard.logprob.stats import TokenStats
from tests.helpers.reference_stats import CLOSE, EXACT, reference_stats


def spec_of(**changes):
    return SamplingSpec(
        **{"engine": "transformers", "temperature": 1.0, "top_k": 0, "top_p": 1.0, **changes}
    )


def random_case(seed, rows=9, vocab=300, width=16, scale=4.0):
    """Integer-valued states and weights, so that both sides compute exactly the same logits."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randint(-4, 5, (rows, width), generator=generator).float()
    weight = torch.randint(-4, 5, (vocab, width), generator=generator).float()
    targets = torch.randint(0, vocab, (rows,), generator=generator)
    return hidden, Head(weight, scale=scale / 64), targets


def reference_of(hidden, head, targets, spec, seen=None, **options):
    logits = (hidden.double() @ head.weight.double().T * head.scale).numpy()
    return reference_stats(logits, targets.numpy(), spec, seen, **options)


def tiled(hidden, head, targets, *, temperature, penalty=None, **options):
    return row_stats(HeadScores(hidden, head, temperature, penalty), targets, **options)


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
    temperature=st.sampled_from([0.0625, 0.25, 1.0, 2.0, 4.0]),  # powers of two: ties stay ties
    top_k=st.sampled_from([0, 1, 7, 256, 5000]),
)
def test_any_tiling_matches_the_reference(seed, vocab, tile, temperature, top_k):
    hidden, head, targets = random_case(seed, vocab=vocab)
    stats = tiled(hidden, head, targets, temperature=temperature, top_k=top_k, tile=tile)
    spec = spec_of(temperature=temperature, top_k=top_k)
    assert_matches(stats, reference_of(hidden, head, targets, spec))


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    vocab=st.integers(2, 30_000),
    temperature=st.sampled_from([0.05, 0.7, 1.3, 5.0]),
    top_k=st.sampled_from([0, 50]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_real_logits_and_large_vocabularies_match_the_reference(
    seed, vocab, temperature, top_k, dtype
):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(5, 16, generator=generator)
    head = Head(torch.randn(vocab, 16, generator=generator).to(dtype))
    targets = torch.randint(0, vocab, (5,), generator=generator)
    stats = tiled(hidden, head, targets, temperature=temperature, top_k=top_k)
    spec = spec_of(temperature=temperature, top_k=top_k)
    expected = reference_of(hidden, head, targets, spec)
    near = reference_of(hidden, head, targets, spec, tie_margin=1e-5).ties
    rank = stats.rank.numpy()  # exact except for logits that agree to five digits
    assert (np.abs(rank - expected.rank) <= near).all()
    for name in ("logprob", "mass_above", "entropy", "log_set_mass", "log_flat_mass"):
        np.testing.assert_allclose(
            getattr(stats, name).double().numpy(), getattr(expected, name), atol=2e-4, err_msg=name
        )


@pytest.mark.slow
@pytest.mark.parametrize("top_k", [0, 50])
@pytest.mark.skipif(not tiles.has_compiler(), reason="no C++ compiler on the PATH")
def test_compiled_sums_match_eager_ones(top_k, monkeypatch):
    for rows in (1, 3, 40):
        generator = torch.Generator().manual_seed(rows)
        hidden = torch.randn(rows, 8, generator=generator)
        head = Head(torch.randn(9000, 8, generator=generator))
        targets = torch.randint(0, 9000, (rows,), generator=generator)
        options = {"temperature": 0.7, "top_k": top_k}
        with monkeypatch.context() as patch:
            patch.setattr(tiles, "has_compiler", lambda: False)
            eager = tiled(hidden, head, targets, **options)
        with monkeypatch.context() as patch:
            patch.setattr(tiles, "WORTH_COMPILING", -1)
            compiled = tiled(hidden, head, targets, **options)
        assert not tiles._compiler_failed
        for name, a, b in zip(eager._fields, eager, compiled, strict=True):
            torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4, msg=name)


def test_every_statistic_has_a_reference_and_a_name_for_verifiers():
    assert {*EXACT, *CLOSE} == {*RowStats._fields}
    assert {*RowStats._fields} <= {field.name for field in fields(TokenStats)}
    assert Partial._fields[-len(COUNTS) :] == COUNTS  # the kernels for GPUs store them apart


def test_given_logits_are_scored_like_those_of_a_head():
    hidden, head, targets = random_case(0)
    logits = hidden @ head.weight.T * head.scale
    stats = row_stats(LogitScores(logits, 2.0), targets, top_k=20)
    assert_matches(stats, reference_of(hidden, head, targets, spec_of(temperature=2.0, top_k=20)))


def test_observer_sees_every_score_once():
    hidden, head, targets = random_case(0, vocab=100)
    seen = {}

    def observer(z, start):
        seen[start] = z.clone()

    tiled(hidden, head, targets, temperature=1.0, tile=32, observer=observer)
    whole = torch.cat([seen[start] for start in sorted(seen)], -1)
    torch.testing.assert_close(whole, hidden @ head.weight.T * head.scale)


def test_a_duplicate_of_the_target_does_not_outrank_it():
    weight = torch.ones(50, 8)  # every logit ties with every other
    stats = tiled(torch.ones(1, 8), Head(weight), torch.tensor([17]), temperature=1.0, tile=7)
    assert stats.rank.item() == 0
    assert stats.mass_above.item() == 0
    assert stats.tail_mass.item() == pytest.approx(1.0)


def test_a_tail_of_1e_minus_12_keeps_its_digits():
    weight = torch.zeros(1000, 1)
    weight[3] = 34.5388  # exp(-34.5388) = 1e-15, times 999 tokens
    stats = tiled(torch.ones(1, 1), Head(weight), torch.tensor([5]), temperature=1.0)
    assert stats.tail_mass.item() == pytest.approx(999e-15, rel=1e-3)


def test_tokens_at_minus_infinity_do_not_give_nan():
    weight = torch.zeros(8, 1)
    bias = torch.tensor([0.0, 0, 0, 0, -torch.inf, -torch.inf, -torch.inf, -torch.inf])
    stats = tiled(
        torch.ones(2, 1), Head(weight, bias), torch.tensor([0, 5]), temperature=1.0, tile=2
    )
    assert stats.logprob[0].item() == pytest.approx(-np.log(4))
    assert stats.logprob[1].item() == -np.inf
    assert not any(torch.isnan(column).any() for column in stats)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6), penalty=st.sampled_from([0.5, 2.0]))
def test_repetition_penalty_counts_prompt_and_prefix(seed, penalty):
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
    spec = spec_of(repetition_penalty=penalty, temperature=0.5, top_k=7)
    rule = RepetitionPenalty.of(penalty, sequences, 40, torch.device("cpu"))
    stats = tiled(hidden, head, targets, temperature=0.5, top_k=7, penalty=rule, tile=11)
    expected = reference_of(hidden, head, targets, spec, seen)
    assert_matches(stats, expected)
    gaps = edge_gaps(HeadScores(hidden, head, 0.5, rule), targets, stats, spec)
    np.testing.assert_allclose(gaps.double().numpy(), expected.edge_gap, atol=1e-4)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    engine=st.sampled_from(["transformers", "vllm", "sglang"]),
    temperature=st.sampled_from([0.5, 1.0, 1.5]),
    top_k=st.sampled_from([0, 1, 5, 20, 10_000]),
    top_p=st.sampled_from([0.3, 0.8, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.02, 0.3]),
)
def test_gap_to_the_support_is_exact_for_every_engine(
    seed, engine, temperature, top_k, top_p, min_p
):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(12, 8, generator=generator)
    head = Head(torch.randn(200, 8, generator=generator))
    targets = torch.randint(0, 200, (12,), generator=generator)
    targets[:4] = (hidden[:4] @ head.weight.T).argmax(-1)  # some certainly inside
    spec = SamplingSpec(engine, temperature, top_k, top_p, min_p)
    stats = tiled(hidden, head, targets, temperature=temperature)
    gaps = (
        edge_gaps(HeadScores(hidden, head, spec.temperature), targets, stats, spec).double().numpy()
    )
    expected = reference_of(hidden, head, targets, spec).edge_gap
    np.testing.assert_array_equal(gaps > 0, expected > 0)
    if min_p == 0:
        np.testing.assert_allclose(gaps, expected, atol=1e-4)
    else:  # min-p cuts between tokens: its edge is at or below the lowest token kept
        assert (gaps <= expected + 1e-4).all()


def test_a_margin_on_top_p_widens_the_nucleus_but_never_switches_it_off():
    head = Head(torch.log(torch.tensor([[0.5], [0.3], [0.15], [0.05]])))
    hidden, targets = torch.ones(4, 1), torch.arange(4)
    spec = spec_of(top_p=0.79)
    stats = tiled(hidden, head, targets, temperature=1.0)
    assert (
        edge_gaps(HeadScores(hidden, head, spec.temperature), targets, stats, spec) > 0
    ).tolist() == [
        False,
        False,
        True,
        True,
    ]
    wide = edge_gaps(
        HeadScores(hidden, head, spec.temperature), targets, stats, spec, mass_margin=0.02
    )
    assert (wide > 0).tolist() == [False, False, False, True]
    assert (
        edge_gaps(
            HeadScores(hidden, head, spec.temperature), targets, stats, spec, mass_margin=0.9
        )[3]
        > 0
    ).item()


@pytest.mark.parametrize(("scale", "softcap"), [(0.25, None), (1.0, 2.0), (3.0, 5.0)])
def test_logit_transforms_apply_to_tile_and_target(scale, softcap):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(30, 4, generator=generator)
    hidden = torch.randn(6, 4, generator=generator)
    head = Head(weight, torch.randn(30, generator=generator), scale, softcap)
    targets = torch.arange(6)
    raw = (hidden @ weight.T + head.bias) * scale
    full = head.softcap * torch.tanh(raw / head.softcap) if softcap else raw
    scores = HeadScores(hidden, head, 2.0)
    torch.testing.assert_close(whole_rows(scores, targets), full / 2)
    torch.testing.assert_close(scores.of(targets), full.gather(1, targets[:, None])[:, 0] / 2)


class WithHead(nn.Module):
    """The minimum of a transformers model that has a head."""

    def __init__(self, head):
        super().__init__()
        self.head, self.config = head, SimpleNamespace(vocab_size=50)

    def get_output_embeddings(self):
        return self.head


def test_a_head_of_a_foreign_class_is_scored_through_its_own_forward():
    class Adapted(nn.Linear):
        def forward(self, x):
            return super().forward(x) + x.sum(-1, keepdim=True) * torch.arange(50) / 50

    torch.manual_seed(0)
    module = Adapted(8, 50)
    head = head_of(WithHead(module))
    assert isinstance(head, ForeignHead)
    hidden, targets = torch.randn(100, 8), torch.randint(0, 50, (100,))
    spec = spec_of(top_k=5)
    with torch.no_grad():
        stats, gaps, _ = head_stats(hidden, head, targets, spec)
        logits = module(hidden).double().numpy()
    expected = reference_stats(logits, targets.numpy(), spec)
    assert_matches(stats, expected)
    np.testing.assert_allclose(gaps.double().numpy(), expected.edge_gap, atol=1e-4)


def test_a_model_without_a_head_is_refused():
    with pytest.raises(HeadError, match="gave NoneType"):
        head_of(WithHead(None))


@pytest.mark.parametrize("layout", ["transposed", "strided", "tied", "odd width"])
def test_weights_of_any_layout_are_read(layout):
    torch.manual_seed(0)
    width = 13 if layout == "odd width" else 16
    weight = {
        "transposed": lambda: torch.randn(width, 5000).T,
        "strided": lambda: torch.randn(10_000, width)[::2],
        "tied": lambda: nn.Embedding(5000, width).weight.detach(),
        "odd width": lambda: torch.randn(5000, width),
    }[layout]()
    hidden, targets = torch.randn(6, width), torch.randint(0, 5000, (6,))
    stats, _, _ = head_stats(hidden, Head(weight), targets, spec_of(top_k=5))
    expected = reference_of(hidden, Head(weight), targets, spec_of(top_k=5))
    np.testing.assert_allclose(stats.logprob.numpy(), expected.logprob, atol=1e-4)


@pytest.mark.parametrize("top_k", [0, 5])
def test_masked_tokens_match_the_reference(top_k):
    generator = torch.Generator().manual_seed(0)
    bias = torch.zeros(300)
    bias[::3] = -torch.inf
    head = Head(torch.randn(300, 8, generator=generator), bias)
    hidden = torch.randn(6, 8, generator=generator)
    targets = torch.tensor([1, 2, 4, 5, 7, 8])
    stats = tiled(hidden, head, targets, temperature=1.0, top_k=top_k, tile=64)
    logits = (hidden.double() @ head.weight.double().T + bias).numpy()
    assert_matches(stats, reference_stats(logits, targets.numpy(), spec_of(top_k=top_k)))


@pytest.mark.parametrize("closed", [-torch.inf, torch.finfo(torch.float32).min])
@pytest.mark.parametrize("top_k", [0, 5])
def test_more_tiles_than_one_merge_takes(closed, top_k):
    """94 tiles, forty in a row with only masked tokens, the likeliest token in the last."""
    generator = torch.Generator().manual_seed(0)
    bias = torch.zeros(3000)
    bias[320 : 320 + 40 * 32] = closed
    bias[2999] = 5.0
    head = Head(torch.randn(3000, 8, generator=generator), bias)
    hidden = torch.randn(6, 8, generator=generator)
    targets = torch.tensor([1, 319, 1600, 2000, 2998, 2999])
    stats = tiled(hidden, head, targets, temperature=1.0, top_k=top_k, tile=32)
    logits = hidden.double() @ head.weight.double().T + bias
    logits = torch.where(bias == closed, -torch.inf, logits).numpy()
    open_ones = [0, 1, 3, 4, 5]
    expected = reference_stats(logits[open_ones], targets[open_ones].numpy(), spec_of(top_k=top_k))
    for column in stats:
        assert not column.isnan().any()
    assert_matches(type(stats)(*(column[open_ones] for column in stats)), expected)


@pytest.mark.slow
@pytest.mark.parametrize("vocab", [300, 8193, 9000, 20_000])
def test_each_member_of_k_counts_once(vocab, monkeypatch):
    """Fairness of the bets: tokens of K weigh exactly what the normaliser says.

    Integer logits tie everywhere, even within a block.
    """
    monkeypatch.setattr(tiles, "has_compiler", lambda: False)
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randint(-3, 3, (1, vocab), generator=generator).float()
    logits[0, torch.randint(0, vocab, (40,), generator=generator)] = 4.0
    targets = torch.arange(vocab)
    parts = []
    for rows in torch.split(targets, 2000):
        scores = LogitScores(logits.expand(len(rows), -1), 1.0)
        parts.append(row_stats(scores, rows, top_k=50))
    in_set = torch.cat([p.in_set for p in parts])
    weight = torch.cat([p.logprob for p in parts])[in_set].double().exp().sum()
    assert weight.item() == pytest.approx(parts[0].log_set_mass[0].double().exp().item(), rel=1e-4)
    assert in_set.sum().item() == pytest.approx(
        parts[0].log_flat_mass[0, 0].double().exp().item(), rel=1e-4
    )


def test_undrawable_token_is_outside_every_support():
    bias = torch.zeros(20)
    bias[7] = -torch.inf
    head, hidden, targets = Head(torch.ones(20, 4), bias), torch.ones(1, 4), torch.tensor([7])
    for options in ({}, {"top_k": 20}, {"top_p": 0.9}):
        stats, gaps, _ = head_stats(hidden, head, targets, spec_of(**options))
        assert gaps.item() == np.inf
        assert not any(torch.isnan(column).any() for column in stats)
