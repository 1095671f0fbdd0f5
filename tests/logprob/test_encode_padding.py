"""What an exchange may put around a completion's ids costs no more than its length."""

from dataclasses import replace

import pytest
from bundled_policy import SPEC, honest, policy

from grpo_guard import Cause, LogProbBoundVerifier
from grpo_guard.logprob.encode import PADDING, EncodeError, Encoder

MILLIONS = 2_000_000


class Counted(tuple):
    """Ids that allow only a few copies of their whole length, however many slices are taken."""

    budget = None

    def __getitem__(self, item):
        taken = super().__getitem__(item)
        if not isinstance(item, slice):
            return taken
        self.budget[0] -= len(taken)
        assert self.budget[0] >= 0, "copied again and again"
        return counted(taken, self.budget)


def counted(ids, budget=None):
    result = Counted(ids)
    result.budget = budget or [4 * len(result)]
    return result


def with_ids(completion, **ids):
    """Past the constructor, which makes plain tuples."""
    changed = replace(completion)
    for name, value in ids.items():
        object.__setattr__(changed, name, value)
    return changed


def encoder(**changes):
    _, tokenizer = policy()
    return Encoder(tokenizer, replace(SPEC, **changes), vocab_size=len(tokenizer))


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_millions_of_pads_are_cut_off_at_once():
    good = next(c for c in honest(8) if c.completion_ids[-1] == policy()[1].eos_token_id)
    pads = (policy()[1].pad_token_id,) * MILLIONS
    padded = with_ids(
        good,
        completion_ids=counted((*good.completion_ids, *pads)),
        prompt_ids=counted((*pads, *good.prompt_ids)),
    )
    encoded = encoder(max_new_tokens=None).encode(padded)
    assert encoded.completion_ids == good.completion_ids
    assert encoded.prompt_ids == good.prompt_ids


@pytest.mark.timeout(120)
def test_pads_alone_leave_one_token():
    pad = policy()[1].pad_token_id
    only = with_ids(honest(8)[0], completion_ids=counted((pad,) * MILLIONS), text="")
    assert encoder(max_new_tokens=None).encode(only).completion_ids == (pad,)


@pytest.mark.parametrize("token", ["pad", "eos"])
def test_more_than_any_batch_is_padded_to_is_overlong_before_it_is_looked_at(token):
    good, tokenizer = honest(8)[0], policy()[1]
    tail = getattr(tokenizer, f"{token}_token_id")

    class Unread(tuple):
        def __iter__(self):
            raise AssertionError("looked at each of them")

        __getitem__ = __iter__

    limit = SPEC.max_new_tokens + PADDING
    ids = with_ids(good, completion_ids=Unread((tail,) * (limit + 1)))
    with pytest.raises(EncodeError) as caught:
        encoder().encode(ids)
    assert caught.value.cause is Cause.OVERLONG
    # With a window, the longer of the two counts: some trainers pad to the declared length.
    model, _ = policy()
    verifier = LogProbBoundVerifier(model, tokenizer, sampling=SPEC)
    room = max(verifier.encoder.window, SPEC.max_new_tokens) + PADDING
    n = len(good.completion_ids)
    fits, spills = (
        replace(good, completion_ids=(*good.completion_ids, *[tail] * (room - n + more)))
        for more in (0, 1)
    )
    verdicts = verifier.verify([fits, spills, good])
    assert [v.accepted for v in verdicts] == [True, False, True]
    assert verdicts[1].cause is Cause.OVERLONG
