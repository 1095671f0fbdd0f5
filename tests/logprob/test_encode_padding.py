"""Padding around a completion's ids costs no more than its length."""

from dataclasses import replace

import pytest

from grpo_guard import Cause, LogProbBoundVerifier
from grpo_guard.logprob.encode import EncodeError, Encoder
from tests.logprob.bundled_policy import SPEC, honest, policy

MILLIONS = 2_000_000


class Counted(tuple):
    """Ids that allow only a few copies of their whole length, however many slices are taken."""

    budget = None

    def __getitem__(self, item):
        taken = super().__getitem__(item)
        if not isinstance(item, slice):
            return taken
        self.budget[0] -= len(taken)
        assert self.budget[0] >= 0, "copied repeatedly"
        return counted(taken, self.budget)


def counted(ids, budget=None):
    result = Counted(ids)
    result.budget = budget or [4 * len(result)]
    return result


def with_ids(completion, **ids):
    """Bypass the constructor, which converts to plain tuples."""
    changed = replace(completion)
    for name, value in ids.items():
        object.__setattr__(changed, name, value)
    return changed


def encoder(**changes):
    _, tokenizer = policy()
    return Encoder(tokenizer, replace(SPEC, **changes), vocab_size=len(tokenizer))


def ended():
    """An honest completion that ends with an EOS."""
    return next(c for c in honest(8) if c.completion_ids[-1] == policy()[1].eos_token_id)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_millions_of_pads_before_a_prompt_are_stripped_cheaply():
    pads = (policy()[1].pad_token_id,) * MILLIONS
    good = ended()
    padded = with_ids(good, prompt_ids=counted((*pads, *good.prompt_ids)))
    assert encoder(max_new_tokens=None).encode(padded).prompt_ids == good.prompt_ids


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["pad", "eos"])
def test_millions_of_pads_are_malformed_cheaply(name):
    tail = (getattr(policy()[1], f"{name}_token_id"),) * MILLIONS
    for ids in (tail, (*ended().completion_ids, *tail)):
        with pytest.raises(EncodeError) as caught:
            encoder(max_new_tokens=None).encode(with_ids(ended(), completion_ids=counted(ids)))
        assert caught.value.cause is Cause.MALFORMED


def test_ids_beyond_the_declared_length_are_overlong_unread():
    class Unread(tuple):
        def __iter__(self):
            raise AssertionError("looked at each of them")

        __getitem__ = __iter__

    ids = with_ids(honest(8)[0], completion_ids=Unread((7,) * (SPEC.max_new_tokens + 1)))
    with pytest.raises(EncodeError) as caught:
        encoder().encode(ids)
    assert caught.value.cause is Cause.OVERLONG


def test_overlong_ids_say_which_limit_they_exceed():
    _, tokenizer = policy()
    sampled = with_ids(honest(8)[0], completion_ids=[7] * 512)
    for limit, window, why in (
        (64, 256, "256 are possible: the model has 256 positions, its max_position_embeddings"),
        (300, None, "300 are possible: max_new_tokens is declared as 300"),
    ):
        spec = replace(SPEC, max_new_tokens=limit)
        with pytest.raises(EncodeError, match=f"512 completion_ids, but at most {why}"):
            Encoder(tokenizer, spec, vocab_size=len(tokenizer), window=window).encode(sampled)


@pytest.mark.parametrize("extra", [1, 40, 512])
def test_closing_tokens_after_an_answer_are_rejected(extra):
    """A trainer that masks by length trains on each of them, but the text shows none."""
    model, tokenizer = policy()
    good = ended()
    spec = replace(SPEC, max_new_tokens=1024)
    verifier = LogProbBoundVerifier(model, tokenizer, sampling=spec)
    sent = replace(good, completion_ids=(*good.completion_ids, *[tokenizer.eos_token_id] * extra))
    verdicts = verifier.verify([sent, good])
    assert [v.accepted for v in verdicts] == [False, True]
    assert verdicts[0].cause is Cause.MALFORMED
    assert "continues after its end" in verdicts[0].reason


def halves():
    """Honest completions without their second halves."""
    tokenizer = policy()[1]
    for one in honest(16):
        ids = one.completion_ids[: len(one.completion_ids) // 2]
        text = tokenizer.decode(ids, skip_special_tokens=True)
        yield replace(one, completion_ids=ids, text=text)


@pytest.mark.parametrize("finish", [None, "stop", "length"])
def test_truncated_answer_is_rejected(finish):
    """The declared sampler stops at an EOS or at its limit; a claimed reason changes nothing."""
    model, tokenizer = policy()
    verifier = LogProbBoundVerifier(model, tokenizer, sampling=SPEC)
    verdicts = verifier.verify([replace(half, finish_reason=finish) for half in halves()])
    assert {(v.outcome.value, v.findings[0].kind) for v in verdicts} == {("reject", "cut_short")}


def test_without_a_declared_limit_only_a_false_stop_claim_is_detected():
    undeclared = encoder(max_new_tokens=None)
    half = next(halves())
    assert undeclared.encode(replace(half, finish_reason="length")).completion_ids
    with pytest.raises(EncodeError, match="cut short"):
        undeclared.encode(replace(half, finish_reason="stop"))


def test_answers_ending_at_the_limit_or_a_stop_string_pass():
    half = next(halves())
    n = len(half.completion_ids)
    assert encoder(max_new_tokens=n).encode(half).completion_ids == half.completion_ids
    stops = Encoder(policy()[1], SPEC, vocab_size=len(policy()[1]), check_end=False)
    assert stops.encode(half).completion_ids == half.completion_ids


def test_special_tokens_inside_are_malformed_unless_the_policy_answers_in_them():
    tokenizer, good = policy()[1], ended()
    own = tokenizer.pad_token_id
    assert own != tokenizer.eos_token_id
    ids = (*good.completion_ids[:3], own, *good.completion_ids[3:])
    inside = replace(good, completion_ids=ids)
    with pytest.raises(EncodeError, match=r"special token at position 3.*special="):
        encoder().encode(inside)
    allowed = Encoder(tokenizer, SPEC, vocab_size=len(tokenizer), special=[own])
    shown = replace(inside, text=tokenizer.decode(ids[:-1]))
    assert allowed.encode(shown).completion_ids == ids
