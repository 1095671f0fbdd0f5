"""A node's batch: e-values have mean at most 1, and repetition convicts."""

import math

import numpy as np
import pytest

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.logprob.batch_evidence import Answer, batch_evidence, sampler_log_probs
from tests.helpers.reference_stats import reference_stats
from tests.helpers.support import support_mask

VOCABULARY = 50
USUAL = math.log(0.8)


SAMPLERS = [
    SamplingSpec(engine, temperature, top_k, top_p, min_p)
    for engine in ("transformers", "vllm", "sglang")
    for temperature, top_k, top_p, min_p in (
        (1.0, 0, 1.0, 0.0),
        (0.7, 0, 0.9, 0.0),
        (1.0, 3, 1.0, 0.0),
        (0.6, 8, 0.8, 0.0),
        (1.0, 0, 1.0, 0.1),
        (1.3, 5, 0.9, 0.05),
    )
]


@pytest.mark.parametrize("spec", SAMPLERS, ids=lambda spec: f"{spec.engine}-{spec.top_k}")
def test_tokens_are_never_held_less_probable_than_sampled(spec):
    """Otherwise an honest node's repetitions would count for too much."""
    rng = np.random.default_rng(0)
    for spread in (0.0, 1.0, 4.0):  # all tied, flat, peaked
        logits = np.round(rng.normal(size=(24, 40)) * spread, 1)
        kept = support_mask(logits, spec)
        p = np.where(kept, np.exp(logits / spec.temperature), 0.0)
        p /= p.sum(axis=1, keepdims=True)
        tokens = np.array([rng.choice(40, p=row) for row in p])
        stats = reference_stats(logits, tokens, spec)
        found = sampler_log_probs(stats, spec, 0.0, 1e-9)
        assert (found >= np.log(p[np.arange(24), tokens]) - 1e-9).all()


def answer(rng, prompt, n, *, stretch=(), at=0, chance=1e-3, log_e=USUAL):
    """A completion of uniform tokens, with a stretch of improbable ones."""
    ids = list(rng.integers(VOCABULARY, size=n))
    log_probs = np.full(n, -math.log(VOCABULARY))
    ids[at : at + len(stretch)] = stretch
    log_probs[at : at + len(stretch)] = math.log(chance)
    return Answer(prompt, tuple(int(i) for i in ids), log_probs, log_e)


def test_honest_batches_rarely_have_a_large_e_value():
    rng = np.random.default_rng(0)
    e = [
        math.exp(batch_evidence([answer(rng, p, 40, log_e=0.0) for p in range(6)]).log_e)
        for _ in range(600)
    ]
    assert np.mean(e) <= 1.1
    assert max(e) < 1000


@pytest.mark.parametrize("at", [0, 20, 34])
def test_phrase_in_answers_to_several_prompts_convicts(at):
    rng = np.random.default_rng(1)
    phrase = [101, 102, 103, 104, 105]
    batch = [answer(rng, p, 40, stretch=phrase, at=at) for p in range(4)]
    batch += [answer(rng, p, 40) for p in range(4, 8)]
    found = batch_evidence(batch)
    assert found.log_e > math.log(1e6)
    assert found.stretches.keys() == {0, 1, 2, 3}
    assert max(s.prompts for s in found.stretches.values()) == 4


def test_phrase_at_different_positions_convicts_too():
    rng = np.random.default_rng(2)
    batch = [answer(rng, p, 60, stretch=[101, 102, 103, 104], at=7 * p) for p in range(8)]
    assert batch_evidence(batch).log_e > math.log(1e6)


def test_answers_to_one_prompt_count_as_one():
    rng = np.random.default_rng(3)
    phrase = [101, 102, 103, 104, 105]
    found = batch_evidence([answer(rng, "same", 40, stretch=phrase) for _ in range(8)])
    assert found.stretches == {}
    assert found.log_e < math.log(10)


def test_phrases_that_the_policy_prefers_may_recur():
    rng = np.random.default_rng(4)
    batch = [answer(rng, p, 40, stretch=[7, 8, 9, 10], chance=0.9) for p in range(8)]
    assert batch_evidence(batch).log_e < math.log(10)


def test_small_evidence_of_many_prompts_adds_up():
    rng = np.random.default_rng(5)
    each = [answer(rng, p, 30, log_e=math.log(4)) for p in range(12)]
    assert batch_evidence(each).log_e > math.log(1000)
    dependent = [answer(rng, "same", 30, log_e=math.log(4)) for _ in range(12)]
    assert batch_evidence(dependent).log_e < math.log(4)


def test_one_poisoned_prompt_of_many_still_counts():
    rng = np.random.default_rng(6)
    batch = [answer(rng, p, 40) for p in range(60)]
    batch += [answer(rng, p, 40, stretch=list(range(101, 108)), at=3) for p in range(60, 63)]
    assert batch_evidence(batch).log_e > math.log(1000)


@pytest.mark.slow
@pytest.mark.timeout(300)  # quadratic work would take longer
def test_long_repetitive_completions_take_linear_time():
    many = [Answer(p, (5,) * 100_000, np.full(100_000, -1e-4), 0.0) for p in range(2)]
    rare = [Answer(p, (5, 6) * 20_000, np.full(40_000, -9.0), 0.0) for p in range(2)]
    assert batch_evidence(many).log_e < math.log(2)
    assert batch_evidence(rare).log_e > math.log(1e6)
