"""Sampling with a shared seed: a verifiable argmax, drawn with the right frequencies.

An honest node is rejected if its sampler strays from the replay anywhere, so the sampler is tested
against brute force over the whole vocabulary, and the loop with transformers against one that
computes every token from scratch.
"""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.logprob.noise import gumbel, noise_position, signed
from grpo_guard.logprob.replay.draw import FEW, draw
from grpo_guard.logprob.replay.generate import CoinSampling, generate_under_coin, until_eos
from tests.helpers.support import support_mask

FAMILIES = ("grpo-guard", "vllm", "sglang")
ENGINES = ("transformers", "vllm", "sglang")


def spec_of(**changes):
    return SamplingSpec(
        **{"engine": "transformers", "temperature": 1.0, "top_k": 0, "top_p": 1.0, **changes}
    )


def seeds_of(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**63), 2**63 - 1, (n,), generator=generator)


def kept_by(scores, spec):
    """Return the support by the float64 formula.

    Keeps all tokens tied at its edge: no rule says which of them an engine's sort keeps.
    """
    mask = support_mask(scores.double().numpy(), replace(spec, temperature=1.0))
    edge = np.where(mask, scores.numpy(), np.inf).min(-1, keepdims=True)
    return torch.from_numpy((scores.numpy() >= edge) & (scores.numpy() > -np.inf))


def brute_force(scores, seeds, positions, spec, family):
    noise = gumbel(seeds[:, None], positions[:, None], torch.arange(scores.shape[-1])[None], family)
    perturbed = torch.where(kept_by(scores, spec), scores + noise, -torch.inf)
    # NumPy's argmax is the first among equals.
    return torch.from_numpy(perturbed.numpy().argmax(-1))


@settings(deadline=None, max_examples=150)
@given(
    seed=st.integers(0, 10**6),
    vocab=st.sampled_from([2, 33, 700, 3000]),
    spread=st.sampled_from([0.1, 2.0, 12.0]),
    whole=st.booleans(),
    closed=st.sampled_from([0.0, 0.5]),
    engine=st.sampled_from(ENGINES),
    temperature=st.sampled_from([0.3, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 5, 50, 2000]),
    top_p=st.sampled_from([0.4, 0.93, 1.0]),
    min_p=st.sampled_from([0.0, 0.04, 0.5]),
    family=st.sampled_from(FAMILIES),
)
def test_drawn_token_is_the_best_of_the_whole_support(
    seed, vocab, spread, whole, closed, engine, temperature, top_k, top_p, min_p, family
):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(4, vocab, generator=generator) * spread
    # Many tokens share a score. Not if top-p follows top-k: `support_edge` (k in all) and
    # `support_mask` (all) differ in how many of the tokens tied with the k-th they renormalise
    # over.
    if whole and (top_k == 0 or top_p == 1):
        logits = logits.round()
    shut = torch.rand(4, vocab, generator=generator) < closed
    shut[:, 0] = False
    scores = (logits / temperature).masked_fill(shut, -torch.inf)
    spec = SamplingSpec(engine, temperature, top_k, top_p, min_p)
    seeds, positions = seeds_of(4, seed), torch.randint(0, 4096, (4,), generator=generator)
    drawn = draw(scores, seeds, positions, spec, family)
    assert drawn.tolist() == brute_force(scores, seeds, positions, spec, family).tolist()


@pytest.mark.parametrize("vocab", [50, 3 * FEW])
@pytest.mark.parametrize("family", FAMILIES)
def test_lowest_id_wins_among_equals(vocab, family):
    """Score + noise is 0 for every token except masked ones."""
    seeds, positions = seeds_of(3), torch.arange(3)
    tokens = torch.arange(vocab)
    scores = -gumbel(seeds[:, None], positions[:, None], tokens[None], family)
    scores[1, :7] = -torch.inf
    scores[2, :31] -= 0.01
    assert draw(scores, seeds, positions, spec_of(), family).tolist() == [0, 7, 31]


@pytest.mark.parametrize("vocab", [50, 3 * FEW])
def test_a_token_at_minus_infinity_is_never_drawn(vocab):
    scores = torch.full((400, vocab), -torch.inf)
    scores[:, [3, vocab - 1]] = torch.tensor([0.0, -2.0])
    drawn = draw(scores, seeds_of(400), torch.arange(400), spec_of())
    assert set(drawn.tolist()) == {3, vocab - 1}


@pytest.mark.parametrize("spec", [spec_of(), spec_of(top_p=0.9), spec_of(min_p=0.3)], ids=str)
def test_row_draws_the_same_alone_and_in_a_batch(spec):
    """Rows that keep many tokens and rows that keep few would take different paths unbatched."""
    generator = torch.Generator().manual_seed(0)
    spread = torch.tensor([[0.1], [0.2], [3.0], [8.0]] * 20)
    scores = torch.randn(80, 4 * FEW, generator=generator) * spread
    scores[3, 10:] = -torch.inf
    arguments = scores, seeds_of(80), torch.arange(80)
    alone = [draw(*(a[i, None] for a in arguments), spec).item() for i in range(80)]
    assert draw(*arguments, spec).tolist() == alone


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"top_k": 4},
        {"top_p": 0.7},
        {"min_p": 0.2},
        {"engine": "vllm", "top_k": 7, "top_p": 0.9},
    ],
    ids=str,
)
@pytest.mark.parametrize("family", FAMILIES)
def test_draw_frequencies_match_the_renormalised_softmax(changes, family):
    n, spec = 20_000, spec_of(**changes)
    scores = torch.tensor([2.0, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0, -1.5, -3.0, -torch.inf])
    drawn = draw(scores.expand(n, -1), seeds_of(1).expand(n), torch.arange(n), spec, family)
    p = torch.where(kept_by(scores[None], spec)[0], scores.double().exp(), 0.0)
    assert_frequencies(torch.bincount(drawn, minlength=len(p)), p / p.sum())


def test_draw_frequencies_match_the_softmax_for_large_vocabularies():
    """With most tokens ruled out by their hash alone."""
    n, vocab = 3000, 2 * FEW
    scores = torch.randn(vocab, generator=torch.Generator().manual_seed(1))
    drawn = draw(scores.expand(n, -1), seeds_of(n), torch.zeros(n, dtype=torch.int64), spec_of())
    group = (scores * 2).floor().clamp(-4, 4).long() + 4
    p = torch.zeros(9, dtype=torch.float64).index_add_(0, group, scores.double().softmax(-1))
    assert_frequencies(torch.bincount(group[drawn], minlength=9), p)


def assert_frequencies(counts, p):
    """Pearson's chi-square, at most five standard deviations above its mean."""
    assert (counts[p == 0] == 0).all()
    counts, expected = counts[p > 0], p[p > 0] * counts.sum()
    freedom = max(1, len(expected) - 1)
    assert ((counts - expected) ** 2 / expected).sum() < freedom + 5 * (2 * freedom) ** 0.5


# A policy with an output head large enough to have preferences.
EOS = 7
PROMPTS = [(3, 4, 5), tuple(range(10, 40)), (9,), (3, 4, 5), tuple(range(50, 61))]
SEEDS = [11, 2**64 - 1, 2**63, 0, 123456789]
TINY = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
}
SAMPLED = spec_of(temperature=0.9, top_k=40, top_p=0.95, max_new_tokens=20)
SPECS = {
    "filters": (SAMPLED, "grpo-guard"),
    "penalty": (replace(SAMPLED, repetition_penalty=3.0), "grpo-guard"),
    "vllm": (spec_of(engine="vllm", min_p=0.02, max_new_tokens=20), "vllm"),
    "sglang": (spec_of(engine="sglang", max_new_tokens=20), "sglang"),
}
each_spec = pytest.mark.parametrize(("spec", "family"), SPECS.values(), ids=SPECS)


@cache
def policy():
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **TINY)).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(20)
    return model


def completions(prompts, seeds, spec, family="grpo-guard", **options):
    return generate_under_coin(
        policy(), prompts, seeds, spec, eos_ids=[EOS], family=family, **options
    )


def from_scratch(prompt, seed, spec, family):
    """Sample token by token, each from its own forward without padding or cache."""
    ids = list(prompt)
    for t in range(spec.max_new_tokens):
        with torch.no_grad():
            z = policy()(torch.tensor([ids]), use_cache=False).logits[:, -1].clone()
        seen, penalty = sorted(set(ids)), spec.repetition_penalty
        z[:, seen] = torch.where(z[:, seen] > 0, z[:, seen] / penalty, z[:, seen] * penalty)
        position = noise_position(family, torch.tensor([len(prompt)]), torch.tensor([t]))
        seeds = torch.tensor([signed(seed)])
        ids.append(int(brute_force(z / spec.temperature, seeds, position, spec, family)))
        if ids[-1] == EOS:
            break
    return tuple(ids[len(prompt) :])


@pytest.mark.slow
@each_spec
def test_batched_completions_match_single_ones_from_scratch(spec, family):
    """With left padding of the shorter prompts, whose token is EOS and has not been seen."""
    together = completions(PROMPTS, SEEDS, spec, family)
    for prompt, seed, completion in zip(PROMPTS, SEEDS, together, strict=True):
        assert completion == from_scratch(prompt, seed, spec, family)
    assert len(set(together)) == len(together)  # even if two prompts are equal


@pytest.mark.slow
@each_spec
def test_completion_does_not_depend_on_its_batch(spec, family):
    together = completions(PROMPTS, SEEDS, spec, family)
    alone = [completions([p], [s], spec, family)[0] for p, s in zip(PROMPTS, SEEDS, strict=True)]
    assert together == alone


@each_spec
def test_interrupted_completion_resumes_identically(spec, family):
    whole = completions(PROMPTS, SEEDS, spec, family)
    prefixes = [c[:at] for c, at in zip(whole, (0, 3, 8, 1, 19), strict=True)]
    assert completions(PROMPTS, SEEDS, spec, family, prefixes=prefixes) == whole


def test_finished_completions_are_unchanged():
    whole = completions(PROMPTS, SEEDS, SAMPLED)
    assert completions(PROMPTS, SEEDS, SAMPLED, prefixes=whole) == whole
    full = [c for c in whole if len(c) == SAMPLED.max_new_tokens]
    seeds = SEEDS[: len(full)]
    assert full
    assert completions(PROMPTS[: len(full)], seeds, SAMPLED, prefixes=full) == full


def test_no_prompts_give_no_completions():
    assert completions([], [], SAMPLED) == []


def test_completions_end_at_the_first_eos_or_the_limit():
    ends = [c.index(EOS) + 1 if EOS in c else 20 for c in completions(PROMPTS, SEEDS, SAMPLED)]
    many = completions([(3, 4, 5)] * 64, list(range(64)), SAMPLED)
    assert all(c.index(EOS) == len(c) - 1 if EOS in c else len(c) == 20 for c in many)
    assert {EOS in c for c in many} == {True, False}
    assert [len(c) for c in completions(PROMPTS, SEEDS, SAMPLED)] == ends


def test_model_generation_defaults_are_ignored_and_preserved(monkeypatch):
    expected = completions(PROMPTS, SEEDS, SAMPLED)
    own = GenerationConfig(do_sample=True, top_k=2, repetition_penalty=5.0, min_new_tokens=20)
    monkeypatch.setattr(policy(), "generation_config", own)
    assert completions(PROMPTS, SEEDS, SAMPLED) == expected
    assert policy().generation_config is own


def test_logits_processor_decides_with_or_without_sampling():
    expected = completions(PROMPTS[:1], SEEDS[:1], SAMPLED)[0]
    prompt = torch.tensor(PROMPTS[:1])
    for sample in (True, False):
        output = policy().generate(
            prompt,
            do_sample=sample,
            max_new_tokens=20,
            eos_token_id=EOS,
            pad_token_id=EOS,
            logits_processor=[CoinSampling(SAMPLED, SEEDS[:1], PROMPTS[:1])],
        )
        assert until_eos(output[0, 3:].tolist(), [EOS]) == expected


def test_tokens_after_the_first_eos_are_dropped():
    assert until_eos([5, 7, 8, 7], [7, 9]) == (5, 7)
    assert until_eos([5, 9], [7, 9]) == (5, 9)
    assert until_eos([5, 6], [7]) == (5, 6)
    assert until_eos([], [7]) == ()


def test_mismatched_seeds_are_refused():
    with pytest.raises(ValueError, match="seeds: expected 2, got 1"):
        CoinSampling(SAMPLED, [1], [(1,), (2,)])


def test_unreplayable_sampler_is_refused_before_sampling():
    with pytest.raises(ValueError, match="'sglang' is replayed with family='sglang' and without"):
        CoinSampling(spec_of(engine="sglang"), [1], [(1,)])
    with pytest.raises(ValueError, match="'sglang' is replayed with family='sglang' and without"):
        CoinSampling(spec_of(engine="sglang", top_k=9), [1], [(1,)], family="sglang")


def test_unannounced_rows_are_refused():
    """Two sequences of one prompt would share the first one's seed, or have none."""
    sampler = CoinSampling(SAMPLED, [1], [(1, 2)])
    with pytest.raises(ValueError, match="expected 1 rows, got 2; repeat prompts"):
        sampler(torch.tensor([[1, 2], [1, 2]]), torch.zeros(2, 96))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"spec": spec_of()}, "max_new_tokens: expected an integer, got None"),
        ({"eos_ids": []}, "eos_ids: expected at least one id"),
        ({"seeds": [1]}, "seeds: expected 2, got 1"),
        ({"prefixes": [()]}, "zip"),
    ],
)
def test_loop_with_invalid_arguments_is_refused(changes, match):
    arguments = {"prompt_ids": [(1,), (2,)], "seeds": [1, 2], "spec": SAMPLED, "eos_ids": [EOS]}
    with pytest.raises(ValueError, match=match):
        generate_under_coin(policy(), **{**arguments, **changes})
