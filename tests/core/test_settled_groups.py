"""Settled rewards for trainers that need a number in place of a completion that is left out."""

import math

import pytest

from grpo_guard import Completion, CompletionVerifier, Guard, Policy, accept, reject
from grpo_guard.guard.settled_groups import SettledGroups, settle_groups


class Marked(CompletionVerifier):
    name = "marked"

    def verify(self, batch):
        return [reject(self) if "bad" in one.text else accept(self) for one in batch]


def settled(policy, rewards, texts, groups=None, out=None):
    guard = Guard(Marked(), policy=policy)
    review = guard.review([Completion("q", text) for text in texts])
    return settle_groups(guard, rewards, review.regrouped(groups), out=out)


def test_a_dropped_completion_has_none_or_the_mean_of_those_that_stay():
    found = settled(Policy("drop"), [1.0, 0.0, 5.0], ["good", "good", "bad"])
    assert found.kept == [1.0, 0.0, None]
    assert found.filled == [1.0, 0.0, 0.5]
    assert found.left_out == [False, False, True]
    assert found.mean() == 0.5


def test_under_zero_nothing_is_left_out():
    found = settled(Policy("zero"), [1.0, 0.0, 5.0], ["good", "good", "bad"])
    assert found.kept == found.filled == [1.0, 0.0, 0.0]
    assert not any(found.left_out)


def test_each_group_has_its_own_mean_and_one_without_any_has_zero():
    texts = ["good", "bad", "good", "bad", "bad"]
    found = settled(Policy("drop"), [1.0, 9.0, 3.0, 9.0, 9.0], texts, groups=[0, 0, 1, 1, 2])
    assert found.filled == [1.0, 1.0, 3.0, 3.0, 0.0]
    assert [found.mean(group) for group in (0, 1, 2, "never")] == [1.0, 3.0, 0.0, 0.0]


def test_what_the_adapter_leaves_out_is_not_in_the_mean():
    found = settled(Policy("drop"), [1.0, 2.0, 9.0], ["good"] * 3, out=[False, False, True])
    assert found.kept == [1.0, 2.0, None]
    assert found.filled == [1.0, 2.0, 1.5]


def test_the_reward_that_stays_is_the_same_object_and_nan_is_in_no_mean():
    rewards = [1.5, math.nan, None]
    found = SettledGroups.of(rewards)
    assert found.kept[0] is rewards[0]
    assert math.isnan(found.filled[1])
    assert found.filled[2] == 1.5


@pytest.mark.parametrize("more", [{"groups": [0]}, {"out": [True]}])
def test_lengths_must_agree(more):
    with pytest.raises(ValueError, match="zip"):
        SettledGroups.of([1.0, 2.0], **more)
