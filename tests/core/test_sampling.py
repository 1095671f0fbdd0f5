"""`support_mask` against samplers written out step by step, and against transformers itself."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    Qwen2Config,
    Qwen2ForCausalLM,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from grpo_guard import SamplingSpec
from tests.helpers.support import support_mask

V = 40


@st.composite
def cases(draw, engine):
    """Random logits: without ties and without mass exactly on a threshold, the support is exact."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    spec = SamplingSpec(
        engine=engine,
        temperature=draw(st.floats(0.2, 3)),
        top_k=draw(st.integers(0, V + 5)),
        top_p=draw(st.floats(0.05, 0.999) | st.just(1.0)),
        min_p=draw(st.floats(0.001, 0.5) | st.just(0.0)),
        repetition_penalty=draw(st.floats(0.5, 2) | st.just(1.0)),
    )
    logits = rng.normal(0, draw(st.floats(0.1, 6)), V)
    return spec, logits, rng.random(V) < 0.3


def scaled(spec, logits, seen):
    """Logits after penalty and temperature, which come first in every engine."""
    penalty = spec.repetition_penalty
    return [
        (x if not s else x / penalty if x > 0 else x * penalty) / spec.temperature
        for x, s in zip(logits.tolist(), seen.tolist(), strict=True)
    ]


def probabilities(z, alive):
    top = max(z[i] for i in alive)
    weights = {i: math.exp(z[i] - top) for i in alive}
    total = math.fsum(weights.values())
    return {i: w / total for i, w in weights.items()}


def top_k(z, alive, k):
    return set(sorted(alive, key=lambda i: -z[i])[:k]) if k > 0 else alive


def top_p(z, alive, p):
    if p >= 1:
        return alive
    kept, mass = set(), 0.0
    probs = probabilities(z, alive)
    for i in sorted(alive, key=lambda i: -z[i]):
        kept.add(i)
        mass += probs[i]
        if mass >= p:  # the token that crosses the threshold stays
            return kept
    return kept


def min_p(z, alive, share):
    probs = probabilities(z, alive)
    return {i for i in alive if probs[i] >= share * max(probs.values())}


def vllm(spec, z):
    alive = min_p(z, set(range(V)), spec.min_p)
    return top_p(z, top_k(z, alive, spec.top_k), spec.top_p)


def sglang(spec, z):
    everything = set(range(V))
    joint = top_k(z, everything, spec.top_k) & top_p(z, everything, spec.top_p)
    return min_p(z, joint, spec.min_p)


def transformers(spec, z):
    alive = top_p(z, top_k(z, set(range(V)), spec.top_k), spec.top_p)
    return min_p(z, alive, spec.min_p)


ENGINES = {"transformers": transformers, "vllm": vllm, "sglang": sglang}


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@given(data=st.data())
@settings(max_examples=150)
def test_support_matches_a_step_by_step_engine(engine, data):
    spec, logits, seen = data.draw(cases(engine))
    expected = ENGINES[engine](spec, scaled(spec, logits, seen))
    assert set(np.flatnonzero(support_mask(logits, spec, seen=seen))) == expected


@given(cases("transformers"))
@settings(max_examples=150)
def test_support_matches_transformers_warpers(case):
    spec, logits, seen = case
    chain = LogitsProcessorList()
    if spec.repetition_penalty != 1.0:
        chain.append(RepetitionPenaltyLogitsProcessor(spec.repetition_penalty))
    chain.append(TemperatureLogitsWarper(spec.temperature))
    if spec.top_k > 0:
        chain.append(TopKLogitsWarper(spec.top_k))
    if spec.top_p < 1:
        chain.append(TopPLogitsWarper(spec.top_p))
    if spec.min_p > 0:
        chain.append(MinPLogitsWarper(spec.min_p))
    ids = torch.from_numpy(np.flatnonzero(seen))[None]
    left = chain(ids, torch.from_numpy(logits)[None].clone())[0]
    mask = support_mask(logits, spec, seen=seen)
    np.testing.assert_array_equal(mask, torch.isfinite(left).numpy())


def test_support_matches_generate():
    """The order of the filters as `generate` applies it, taken from its processed scores."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=200,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        initializer_range=1.0,
        pad_token_id=0,
        eos_token_id=None,
        bos_token_id=None,
    )
    model = Qwen2ForCausalLM(config).eval()
    spec = SamplingSpec("transformers", 0.9, 60, 0.8, min_p=0.02, repetition_penalty=1.3)
    prompt = torch.randint(1, 200, (4, 5))
    out = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=True,
        temperature=spec.temperature,
        top_k=spec.top_k,
        top_p=spec.top_p,
        min_p=spec.min_p,
        repetition_penalty=spec.repetition_penalty,
        max_new_tokens=12,
        output_logits=True,
        output_scores=True,
        return_dict_in_generate=True,
    )
    sizes = set()
    for step, (logits, scores) in enumerate(zip(out.logits, out.scores, strict=True)):
        seen = np.zeros((4, 200), dtype=bool)
        np.put_along_axis(seen, out.sequences[:, : 5 + step].numpy(), True, -1)
        mask = support_mask(logits.numpy(), spec, seen=seen)
        np.testing.assert_array_equal(mask, torch.isfinite(scores).numpy())
        sizes |= set(mask.sum(-1).tolist())
    assert min(sizes) < 60  # top-p and min-p had an effect, not only top-k


@given(cases("vllm"))
@settings(max_examples=50)
def test_likeliest_token_always_stays_and_greedy_keeps_only_it(case):
    spec, logits, _ = case
    best = int(np.argmax(logits))
    assert support_mask(logits, spec)[best]
    greedy = SamplingSpec(spec.engine, spec.temperature, 1, spec.top_p, spec.min_p)
    assert np.flatnonzero(support_mask(logits, greedy)).tolist() == [best]


def test_filter_order_changes_the_nucleus():
    probs = np.array([0.4, 0.2, 0.15, 0.13, 0.12])
    kept = {
        engine: int(support_mask(np.log(probs), SamplingSpec(engine, 1.0, 3, 0.79)).sum())
        for engine in ENGINES
    }
    # The first two hold 0.6 of all, and 0.8 of the top three.
    assert kept == {"transformers": 2, "vllm": 2, "sglang": 3}


def test_ties_with_the_kth_token_and_the_crossing_token_stay():
    spec = SamplingSpec("transformers", 1.0, 2, 1.0)
    assert support_mask(np.array([3.0, 1.0, 1.0, 0.0]), spec).tolist() == [True, True, True, False]
    spec = SamplingSpec("transformers", 1.0, 0, 0.6)
    assert support_mask(np.log([0.5, 0.3, 0.2]), spec).tolist() == [True, True, False]


def test_batch_rows_are_independent():
    rng = np.random.default_rng(0)
    logits, seen = rng.normal(0, 3, (2, 3, V)), rng.random((2, 3, V)) < 0.3
    spec = SamplingSpec("sglang", 0.7, 12, 0.9, 0.01, 1.2)
    together = support_mask(logits, spec, seen=seen)
    for row in np.ndindex(2, 3):
        alone = support_mask(logits[row], spec, seen=seen[row])
        np.testing.assert_array_equal(together[row], alone)


def test_token_without_probability_is_outside():
    logits = np.array([0.0, -np.inf, -1.0])
    for engine in ENGINES:
        for spec in (SamplingSpec(engine, 1.0, 0, 1.0), SamplingSpec(engine, 1.0, 3, 0.99)):
            assert support_mask(logits, spec).tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("engine", "tgi"),
        ("temperature", 0.0),
        ("temperature", math.nan),
        ("temperature", True),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", 1.0),
        ("repetition_penalty", 0.0),
        ("max_new_tokens", 0),
        ("eos_token_ids", (-1,)),
        ("eos_token_ids", "12"),
    ],
)
def test_options_out_of_range_are_refused(field, value):
    fields = {"engine": "vllm", "temperature": 1.0, "top_k": 0, "top_p": 1.0, field: value}
    with pytest.raises(ValueError, match=rf"SamplingSpec\.{field}: expected .*, got "):
        SamplingSpec(**fields)


def test_missing_options_are_not_guessed():
    with pytest.raises(TypeError, match=r"SamplingSpec.temperature: expected a value"):
        SamplingSpec("vllm")
    assert not SamplingSpec("vllm", 1.0, 0, 1.0).truncates
    assert SamplingSpec("vllm", 1.0, 50, 1.0).truncates
    assert SamplingSpec("vllm", 1.0, 0, 0.9).truncates
    assert SamplingSpec("vllm", 1.0, 0, 1.0, min_p=0.1).truncates
