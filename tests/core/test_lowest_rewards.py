"""What unjudged work earns: the lowest of the latest rewards."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_guard import Guard
from grpo_guard.core.verdict import accept
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.guard.graders import GraderFailures
from grpo_guard.guard.lowest_rewards import REMEMBERED, LowestRewards
from grpo_guard.server.bodies import Queries
from grpo_guard.server.rewards import Rewards
from tests.core.rule_verifiers_core import Says, completions

NUMBERS = st.floats(-1e6, 1e6)


@given(st.lists(st.lists(NUMBERS, max_size=3)))
def test_least_is_that_of_the_latest_and_at_most_0(batches):
    lowest = LowestRewards()
    for batch in batches:
        lowest.add(batch)
    latest = [number for batch in batches for number in batch][-REMEMBERED:]
    assert lowest.least == min([0.0, *latest])


def test_a_low_reward_is_forgotten():
    lowest = LowestRewards()
    lowest.add([-5.0])
    lowest.add([-1.0] * (REMEMBERED - 1))
    assert lowest.least == -5.0
    lowest.add([-1.0])
    assert lowest.least == -1.0


def test_grotesque_rewards_do_not_count():
    lowest = LowestRewards()
    lowest.add([-1e300, -math.inf, math.nan, -2.0])
    assert lowest.least == -2.0


class Accepting(CompletionVerifier):
    name = "accepting"

    def verify(self, batch):
        return [accept(self.name)] * len(batch)


def test_one_grotesque_reward_does_not_punish_late_work_of_others():
    """An unbounded grader, -|answer - label|, and one sender that answers with 300 digits."""

    def grade(queries, prompts, labels):
        return {
            "rewards": [-abs(float(q) - float(x)) for q, x in zip(queries, labels, strict=True)]
        }

    rewards = Rewards(Guard(Accepting()), grade)
    for query in ("27", "9" * 300):
        asked = Queries([query], [""], ["29"])
        rewards.of(asked, rewards.admitted(asked), [accept("accepting")])
    assert rewards.abstained(1)["rewards"] == [-2.0]


@pytest.mark.parametrize("failures", [None, GraderFailures()])
def test_tensor_of_booleans_is_a_list_of_rewards(failures):
    guard = Guard(Says(), failures=failures)
    rewards = guard.apply(torch.tensor([True, False]), completions("a", "a"))
    assert rewards == [True, False]
