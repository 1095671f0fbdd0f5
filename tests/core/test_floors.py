"""A vetoed reward is never more than the lowest reward of its group."""

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_guard import Completion, CompletionVerifier, Guard, Policy
from grpo_guard.core.verdict import Cause, abstain, accept, reject
from grpo_guard.guard import REMEMBERED

ZERO = Policy("zero")


class ByText(CompletionVerifier):
    name = "by_text"

    def verify(self, batch):
        made = {"r": reject, "s": lambda name: abstain(name, Cause.UNSUPPORTED)}
        return [made.get(c.text, accept)(self.name) for c in batch]


def batch_of(verdicts, group=None, prompt="3+4?"):
    return [Completion(prompt, verdict, group=group) for verdict in verdicts]


def settled(rewards, verdicts, policy=None, **more):
    policy = policy or Policy("zero", "zero", max_abstain_rate=1.0)
    return Guard(ByText(), policy=policy).apply(rewards, batch_of(verdicts, **more))


@pytest.mark.parametrize(
    ("rewards", "verdicts", "expected"),
    [
        ([1, 0, 1, 0], "aara", [1, 0, 0, 0]),  # as in the paper
        ([1, -1, -1, 1], "aaar", [1, -1, -1, -1]),
        ([1, -1, 1, 1], "aasr", [1, -1, -1, -1]),
        ([1, 1, -1], "rrr", [-1, -1, -1]),  # otherwise one of them would beat the others
        ([1, 0, 1, -9], "aarr", [1, 0, -9, -9]),  # a decoy of the same sender raises nothing
        ([-2, -1], "ra", [-2, -1]),
        ([None, -1, 1], "aar", [None, -1, -1]),
        ([1, None], "ar", [1, None]),
        ([float("-inf"), 1, 1], "aar", [float("-inf"), 1, 0]),
    ],
)
def test_zero_pays_at_most_the_lowest_of_the_group(rewards, verdicts, expected):
    assert settled(rewards, verdicts) == expected


def test_groups_are_distinguished_by_prompt():
    chats = ([{"role": "user", "content": "x"}], [{"role": "system", "content": "x"}])
    for prompts in (("x", "y"), chats):
        one, two = (batch_of("aar", prompt=p) for p in prompts)
        found = Guard(ByText(), policy=ZERO).apply([1, -1, 1, 1, 0, 1], [*one, *two])
        assert found == [1, -1, -1, 1, 0, 0]


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_sender_label_does_not_form_a_group(size):
    """An attack: rejected completions under a label "mine", away from the prompt's wrong answers,
    or under the label of another prompt that has no wrong answers.
    """
    honest = batch_of("aa", group="real") + batch_of("aa", group="other", prompt="5+6?")
    for label in ("mine", "other", 0, None):
        batch = [*honest, *batch_of("r" * size, group=label)]
        kept = Guard(ByText(), policy=ZERO).apply([1, -1, 1, 1, *[1] * size], batch)
        assert kept == [1, -1, 1, 1, *[-1] * size]


def test_dropped_and_numeric_rewards_do_not_lower_the_floor():
    assert settled([1, 1, -9], "asr", Policy("drop", "zero")) == [1, 0, None]
    assert settled([1, 1, 1], "asr", Policy(-0.5, "zero")) == [1, -0.5, -0.5]
    assert settled([-1, 1, 1], "aar", Policy(0.25, "zero")) == [-1, 1, 0.25]  # the requested number


def test_single_completions_use_recent_rewards_as_the_floor():
    guard = Guard(ByText(), policy=ZERO)
    sent = [(1, "a"), (1, "r"), (-1, "a"), (1, "r"), (0.5, "a"), (1, "r")]
    got = [guard.apply([reward], batch_of([verdict]))[0] for reward, verdict in sent]
    assert got == [1, 0, -1, -1, 0.5, -1]
    for _ in range(REMEMBERED):
        guard.apply([1], batch_of("a"))
    assert guard.apply([1], batch_of("r")) == [0]


def test_copies_and_pickles_keep_the_lowest_reward():
    guard = Guard(ByText(), policy=ZERO)
    guard.apply([-1], batch_of("a"))
    assert pickle.loads(pickle.dumps(guard)).apply([1], batch_of("r")) == [-1]
    assert copy.copy(guard).apply([1], batch_of("r")) == [-1]


REWARDS = st.one_of(st.none(), st.floats(-5, 5), st.just(float("nan")), st.integers(-1, 1))


@given(st.lists(st.tuples(REWARDS, st.sampled_from("ars"), st.integers(0, 2)), max_size=12))
def test_vetoed_reward_never_beats_any_of_its_prompt(rows):
    policy = Policy("zero", "zero", max_abstain_rate=1.0)
    batch = [Completion("p", verdict, group=group) for _, verdict, group in rows]
    rewards = [reward for reward, _, _ in rows]
    kept = Guard(ByText(), policy=policy).apply(rewards, batch)
    assert len(kept) == len(rows)
    for (reward, verdict, _), after in zip(rows, kept, strict=True):
        if verdict == "a":
            assert repr(after) == repr(reward)
        elif reward is None:
            assert after is None
        else:
            assert after <= 0
            assert all(after <= other for other in kept if other is not None and other == other)


@given(st.lists(st.tuples(st.floats(0, 5), st.sampled_from("ars")), max_size=12))
def test_zero_pays_zero_without_negative_rewards(rows):
    kept = settled([reward for reward, _ in rows], [verdict for _, verdict in rows])
    assert kept == [reward if verdict == "a" else 0 for reward, verdict in rows]
