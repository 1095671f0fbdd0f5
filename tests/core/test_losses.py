"""Rejected completions that stay in their group because they lose there."""

import math
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_guard import Guard, Policy
from grpo_guard.core.completion import Completion
from grpo_guard.core.ensemble import AllOf, Cascade
from grpo_guard.core.verdict import Cause, abstain, accept, reject
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.guard.settlement import Ruling, settle
from grpo_guard.nodes.intake import STANDING_VERIFIER


class NoX(CompletionVerifier):
    name = "no_x"

    def verify(self, batch):
        return [
            reject(self.name, message="x") if "x" in c.text else accept(self.name) for c in batch
        ]


def settled(rewards, texts, **policy):
    batch = [Completion(prompt="p", text=text) for text in texts]
    return Guard(NoX(), policy=Policy(on_reject="no_gain", **policy)).apply(rewards, batch)


def test_rejected_rows_that_gain_are_left_out_and_losing_ones_stay():
    assert settled([1.0, 0.0, 1.0, 0.0], ["a", "a", "x", "x"]) == [1.0, 0.0, None, 0.0]
    assert settled([0.0, 0.0, 0.0], ["a", "a", "x"]) == [0.0, 0.0, 0.0]  # no rejected row gains
    assert settled([1.0, 0.0], ["x", "x"]) == [None, None]  # nothing to compare with
    assert settled([1.0, -2.0, -1.0], ["a", "a", "x"]) == [1.0, -2.0, -1.0]


def test_bad_rejected_rows_do_not_raise_a_better_one_above_the_mean():
    """An attack: wrong answers lower the mean under a poisoned answer of middling reward."""
    assert settled([1.0, 0.0, 0.5, 0.0, 0.0], ["a", "a", "x", "x", "x"]) == [1.0, 0.0, None, 0, 0]


def test_excluded_node_has_no_effect_even_by_losing(tmp_path):
    """An attack: an excluded node sends right working before wrong answers, and it is unlearnt."""

    class Excluded(CompletionVerifier):
        name = STANDING_VERIFIER

        def verify(self, batch):
            return [(reject if c.node == "bad" else accept)(self.name) for c in batch]

    batch = [
        Completion(prompt="p", text=text, node=node)
        for text, node in [("a", "good"), ("x", "good"), ("a", "bad"), ("x", "bad")]
    ]
    for verifier in (AllOf(Excluded(), NoX()), Cascade(Excluded(), NoX()), NoX() & Excluded()):
        found = Guard(verifier, policy=Policy(on_reject="no_gain")).apply([1.0, 0, 0, 0], batch)
        assert found == [1.0, 0.0, None, None]


class Standing(CompletionVerifier):
    name = STANDING_VERIFIER

    def __init__(self, verdict):
        self.verdict = verdict

    def verify(self, batch):
        return [self.verdict for _ in batch]


def test_rejected_rows_are_left_out_while_exclusion_is_unknown():
    unknown = Standing(abstain(STANDING_VERIFIER, Cause.FAULT, "the ledger cannot be read"))
    batch = [Completion(prompt="p", text=text) for text in "ax"]
    found = Guard(AllOf(unknown, NoX()), policy=Policy(on_reject="no_gain")).apply([1.0, 0], batch)
    assert found[1] is None


def test_exclusion_check_must_come_first():
    """An attack: an excluded node trips a cheap screen, so its exclusion is never looked up."""
    standing = Standing(reject(STANDING_VERIFIER))
    for verifier in (Cascade(NoX(), standing), AllOf(NoX(), Cascade(NoX(), AllOf(standing)))):
        with pytest.raises(ValueError, match="ExclusionVerifier as the first member"):
            Guard(verifier, policy=Policy(on_reject="no_gain"))
        Guard(verifier, policy=Policy(on_reject="drop"))


def test_groups_are_compared_separately():
    prompts, texts, rewards = "ppqq", "axax", [1.0, 0.5, 0.0, 0.5]
    batch = [Completion(prompt=p, text=t) for p, t in zip(prompts, texts, strict=True)]
    found = Guard(NoX(), policy=Policy(on_reject="no_gain")).apply(rewards, batch)
    assert found == [1.0, 0.5, 0.0, None]


def advantages(rewards):
    """Unscaled advantages of one group; rows with None take no part."""
    mean = fmean(r for r in rewards if r is not None)
    return [0.0 if r is None else r - mean for r in rewards]


@pytest.mark.parametrize("clean", [0, 1, 4])
@pytest.mark.parametrize("label", ["mine", "other", "real", None])
def test_no_label_lets_a_rejected_completion_gain_reward(label, clean):
    """An attack: poison next to its own clean copies, under a label of the sender's choice, was
    compared with these alone and kept the reward of a right answer.
    """
    sent = [("p", "a", "real", 1.0), ("p", "a", "real", 0.0), ("p", "a", "real", 0.0)]
    sent += [("q", "a", "other", 1.0), ("q", "a", "other", 1.0)]
    sent += [("p", "a", label, 1.0)] * clean + [("p", "x", label, 1.0)] * 2
    batch = [Completion(prompt, text, group=group) for prompt, text, group, _ in sent]
    rewards = [reward for *_, reward in sent]
    found = Guard(NoX(), policy=Policy(on_reject="no_gain")).apply(rewards, batch)
    of_prompt = [f for f, (prompt, *_) in zip(found, sent, strict=True) if prompt == "p"]
    assert found[-2:] == [None, None]
    assert max(advantages(of_prompt)[-2:]) <= 0


def test_row_that_would_gain_within_its_label_is_left_out():
    """A trainer may group by label, where the poison would be the best of its group."""
    sent = [("a", 0, 1.0), ("a", 0, 1.0), ("a", 1, 0.0), ("x", 1, 0.5), ("x", 0, 0.5)]
    batch = [Completion("p", text, group=group) for text, group, _ in sent]
    found = Guard(NoX(), policy=Policy(on_reject="no_gain")).apply([r for *_, r in sent], batch)
    assert found == [1.0, 1.0, 0.0, None, 0.5]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, None])
def test_invalid_reward_is_left_out(bad):
    assert settled([1.0, bad], ["a", "x"]) == [1.0, None]


ROWS = st.lists(
    st.tuples(
        st.none() | st.floats(-5, 5) | st.sampled_from([0.0, 1.0]),
        st.booleans(),
        st.sampled_from("pq"),
        st.sampled_from("lm"),
    ),
    max_size=24,
)


@given(ROWS)
def test_no_rejected_completion_is_above_the_mean_of_its_group(rows):
    rewards, rejected, groups, labels = (
        (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [], [])
    )
    settled = settle(
        [[reward] for reward in rewards],
        [Ruling.REJECTED if out else Ruling.ACCEPTED for out in rejected],
        Policy(on_reject="no_gain"),
        groups=groups,
        labels=labels,
    )
    found = [reward for (reward,) in settled.rewards]
    assert [f for f, out in zip(found, rejected, strict=True) if not out] == [
        r for r, out in zip(rewards, rejected, strict=True) if not out
    ]
    labelled = list(zip(groups, labels, strict=True))
    for partition in (groups, labelled):  # whichever the trainer uses
        for group in set(partition):
            of_group = [
                f for f, g in zip(found, partition, strict=True) if g == group and f is not None
            ]
            for i, value in enumerate(found):
                if rejected[i] and partition[i] == group and value is not None:
                    assert value == rewards[i]
                    assert value <= fmean(of_group) + 1e-9
