"""Sampling masks of senders: true ones pass, lies are found, unverifiable ones are refused."""

from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_guard import Completion, Guard, LogProbBoundVerifier, SamplingSpec, ScreensVerifier
from grpo_guard.core.sampling_mask import KEY, SamplingMask
from grpo_guard.evals.policies.bundled import WORD_PROBLEMS
from grpo_guard.evals.tasks.word_problems import generate
from grpo_guard.logprob.scorers.reuse import ForwardReuse

SAMPLERS = {
    "top-k": SamplingSpec("transformers", 1.0, 50, 1.0, max_new_tokens=32),
    "top-p": SamplingSpec("transformers", 1.0, 0, 0.9, max_new_tokens=32),
    "top-k, top-p, hot": SamplingSpec("transformers", 1.3, 40, 0.95, max_new_tokens=32),
    "min-p": SamplingSpec("transformers", 1.0, 0, 1.0, min_p=0.05, max_new_tokens=32),
    "penalty": SamplingSpec(
        "transformers", 1.0, 30, 0.95, repetition_penalty=1.2, max_new_tokens=32
    ),
}


@pytest.fixture(scope="module")
def policy():
    model = AutoModelForCausalLM.from_pretrained(WORD_PROBLEMS).eval()
    return model, AutoTokenizer.from_pretrained(WORD_PROBLEMS)


def sampled(policy, spec, count, dtype=torch.float32):
    """Honest completions with the engine's own masks."""
    return list(_sampled(policy, spec, max(count, 4), dtype)[:count])


@cache  # rows are drawn one by one, so that few are the first of many
def _sampled(policy, spec, count, dtype):
    model, tok = policy
    model = model if dtype is torch.float32 else AutoModelForCausalLM.from_pretrained(
        WORD_PROBLEMS, dtype=dtype
    ).eval()  # fmt: skip
    torch.manual_seed(0)
    made = []
    for problem in generate("masks", count):
        ids = tok(problem.prompt, return_tensors="pt")["input_ids"]
        out = model.generate(
            ids, do_sample=True, temperature=spec.temperature, top_k=spec.top_k, top_p=spec.top_p,
            min_p=spec.min_p or None, repetition_penalty=spec.repetition_penalty,
            max_new_tokens=spec.max_new_tokens, output_scores=True, return_dict_in_generate=True,
            pad_token_id=tok.eos_token_id,
        )  # fmt: skip
        drawn = out.sequences[0, ids.shape[1] :].tolist()
        kept = tuple(tuple(torch.nonzero(row[0].isfinite())[:, 0].tolist()) for row in out.scores)
        text = tok.decode(drawn, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        one = Completion(
            problem.prompt, text, prompt_ids=ids[0].tolist(), completion_ids=drawn, node="n"
        )
        made.append(with_mask(one, kept))
    return tuple(made)


def with_mask(completion, kept):
    return replace(completion, metadata={KEY: SamplingMask(tuple(kept)).claim()})


def kept_of(completion):
    return list(SamplingMask.of(completion).kept)


def verifier(policy, spec, **more):
    return LogProbBoundVerifier(*policy, sampling=spec, **more)


def kinds(verdicts):
    return [{f.kind for f in v.findings if v.rejected} for v in verdicts]


# The fast tests have every rule of every sampler, if not each by itself.
MANY = [
    pytest.param(name, marks=[] if name in ("top-k, top-p, hot", "penalty") else pytest.mark.slow)
    for name in SAMPLERS
]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.float32) for name in SAMPLERS),
        *(pytest.param(*p.values, torch.bfloat16, marks=p.marks) for p in MANY),
    ],
)
def test_true_masks_pass_even_with_different_rounding(policy, name, dtype):
    spec = SAMPLERS[name]
    batch = sampled(policy, spec, 4 if dtype is torch.float32 else 8, dtype)
    assert max(len(kept) for c in batch for kept in kept_of(c)) > 1
    assert "claimed_mask" not in set().union(*kinds(verifier(policy, spec).verify(batch)))


LIES = {
    "only what was drawn": lambda drawn, kept, size: (drawn,),
    "without the likeliest": lambda drawn, kept, size: (
        [t for t in kept if t == drawn][:1] + [t for t in range(size) if t not in kept][:20]
    ),
    "the whole vocabulary": lambda drawn, kept, size: range(size),
}


@pytest.mark.parametrize("name", MANY)
@pytest.mark.parametrize("lie", LIES)
def test_false_mask_is_located(policy, name, lie):
    spec, size = SAMPLERS[name], len(policy[1])
    check = verifier(policy, spec)
    for completion in sampled(policy, spec, 4):
        kept = kept_of(completion)
        place = max(range(len(kept)), key=lambda i: len(kept[i]))
        kept[place] = tuple(LIES[lie](completion.completion_ids[place], kept[place], size))
        (verdict,) = check.verify([with_mask(completion, kept)])
        assert verdict.rejected
        (finding,) = [f for f in verdict.findings if f.kind == "claimed_mask"]
        assert finding.token_span == (place, place + 1)


def test_sampler_that_keeps_everything_needs_no_mask(policy):
    spec = SamplingSpec("transformers", 1.0, 0, 1.0, max_new_tokens=32)
    (completion,) = sampled(policy, spec, 1)
    assert not verifier(policy, spec).verify([completion])[0].rejected
    drawn = completion.completion_ids
    cut = [tuple({*kept[:10], t}) for kept, t in zip(kept_of(completion), drawn, strict=True)]
    (verdict,) = verifier(policy, spec).verify([with_mask(completion, cut)])
    assert kinds([verdict]) == [{"claimed_mask"}]


def test_unclaimed_positions_and_completions_are_not_checked(policy):
    spec = SAMPLERS["top-k"]
    (completion,) = sampled(policy, spec, 1)
    none = with_mask(completion, [()] * len(completion.completion_ids))
    bare = replace(completion, metadata={})
    check = verifier(policy, spec)
    found = check.verify([none, bare])
    assert [v.outcome for v in found] == ["accept", "accept"]
    assert found[0].p_value == found[1].p_value


@pytest.mark.parametrize(
    ("claim", "why"),
    [
        ("all", "expected ids and counts"),
        ({"ids": [1]}, "sampling_mask.counts: expected a list of integers"),
        ({"ids": [1], "counts": [1]}, "counts, one per token"),
        ({"ids": "x", "counts": None}, "sampling_mask.ids: expected a list of integers"),
        ({"ids": range(2**40), "counts": []}, "sampling_mask.ids: expected"),
        (lambda n, t: {"ids": [], "counts": [-1, 1] + [0] * (n - 2)}, "counts, one per token"),
        (lambda n, t: {"ids": [t + 1], "counts": [1] + [0] * (n - 1)}, "is not in its own mask"),
        (lambda n, t: {"ids": [t, t], "counts": [2] + [0] * (n - 1)}, "is twice"),
        (lambda n, t: {"ids": [t, 10**9], "counts": [2] + [0] * (n - 1)}, "of the vocabulary"),
    ],
)
def test_invalid_mask_is_malformed(policy, claim, why):
    spec = SAMPLERS["top-k"]
    (completion,) = sampled(policy, spec, 1)
    if callable(claim):
        claim = claim(len(completion.completion_ids), completion.completion_ids[0])
    (verdict,) = verifier(policy, spec).verify([replace(completion, metadata={KEY: claim})])
    assert (verdict.outcome, verdict.cause) == ("reject", "malformed")
    assert why in verdict.reason


def test_mask_without_ids_or_model_is_refused(policy):
    spec = SAMPLERS["top-k"]
    (completion,) = sampled(policy, spec, 1)
    (verdict,) = verifier(policy, spec).verify([replace(completion, completion_ids=None)])
    assert "expected token ids with it" in verdict.reason
    check = verifier(policy, spec)
    own = check.scorer
    check.scorer = SimpleNamespace(score=own.score, vocab_size=own.vocab_size, window=own.window)
    (verdict,) = check.verify([completion])
    assert verdict.cause == "malformed"
    assert "nothing here can check it" in verdict.reason


def test_masks_are_checked_in_the_trainers_forward_too(policy):
    model, tok = policy
    spec = SAMPLERS["top-k"]
    check = LogProbBoundVerifier(None, tok, scorer=ForwardReuse(model), sampling=spec)
    batch = sampled(policy, spec, 2)
    lie = with_mask(batch[0], [(t,) for t in batch[0].completion_ids])
    assert kinds(check.verify([*batch, lie]))[:2] == [set(), set()]
    assert "claimed_mask" in kinds(check.verify([lie]))[0]


def test_negative_control_guard_without_the_check_accepts_every_lie(policy):
    (completion,) = sampled(policy, SAMPLERS["top-k"], 1)
    lie = with_mask(replace(completion, completion_ids=completion.completion_ids),
                    [(t,) for t in completion.completion_ids])  # fmt: skip
    guard = Guard(ScreensVerifier(), tokenizer=policy[1])
    assert guard.apply([1.0], [lie]) == [1.0]


@given(
    st.recursive(
        st.none() | st.integers() | st.floats() | st.text() | st.booleans(),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.sampled_from(["ids", "counts", "x"]), inner, max_size=3)
        ),
        max_leaves=12,
    )
)
def test_any_claim_parses_or_raises_value_error(claim):
    completion = Completion("p", "t", completion_ids=(1, 2), metadata={KEY: claim})
    try:
        mask = SamplingMask.of(completion)
    except ValueError as error:
        said = str(error)
        if not said.startswith(KEY):
            raise
        return
    assert mask is None or (len(mask.kept) == 2 and SamplingMask.of(completion) == mask)


def test_arrays_of_libraries_are_read():
    claim = {"ids": np.array([1, 5, 2], dtype=np.int32), "counts": np.array([2, 1], np.int32)}
    completion = Completion("p", "t", completion_ids=(1, 2), metadata={KEY: claim})
    assert SamplingMask.of(completion).kept == ((1, 5), (2,))
