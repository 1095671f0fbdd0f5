"""Tinker cookbook and AReaL: left-out rows, checked against the published arithmetic."""

import asyncio
import math
from abc import ABC, abstractmethod
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from grpo_guard import AbstainError, Guard, Policy, presets  # noqa: E402
from grpo_guard.adapters.areal import GuardedGroup  # noqa: E402
from grpo_guard.adapters.tinker import GuardedGroups  # noqa: E402
from grpo_guard.guard.framework import FrameworkError  # noqa: E402
from tests.helpers import published  # noqa: E402
from tests.helpers.words import Words  # noqa: E402

VOCABULARY = ["<end>", "3+4?", "one", "two", "three", "Hail", "unseen", "tool"]
NAN = float("nan")


class Tokenizer:
    eos_token_id, all_special_ids = 0, (0,)

    def decode(self, ids, skip_special_tokens=True):
        return " ".join(VOCABULARY[i] for i in ids if i or not skip_special_tokens)


def ids(text):
    return [VOCABULARY.index(word) for word in text.split()] + [0]


# One interface for both: rows of (text, reward) in, advantages of trained rows out.


def tinker(rows, guard, cut=()):
    kind = type(
        "Builder",
        (GuardedGroups, published.EnvGroupBuilder),
        {"guard": guard, "tokenizer": Tokenizer()},
    )
    trajectories = [
        published.Trajectory(
            [
                published.Transition(
                    published.observation(1), published.action(ids(text), i in cut), reward, True
                )
            ]
        )
        for i, (text, reward) in enumerate(rows)
    ]
    envs = [SimpleNamespace(node=f"n{i}") for i in range(len(rows))]
    found, trains, _ = published.tinker_advantages(kind(), trajectories, envs)
    return [a if t else None for a, t in zip(found, trains, strict=True)]


@pytest.fixture(autouse=True)
def areal_is_there(monkeypatch):
    published.areal_modules(monkeypatch)


class RolloutWorkflow(ABC):
    """A workflow by the test that AReaL itself uses."""

    @abstractmethod
    async def arun_episode(self, engine, data):
        raise NotImplementedError


class Group(GuardedGroup, RolloutWorkflow):
    pass


def areal(rows, guard, cut=()):
    left = iter(rows)

    class Workflow:
        tokenizer = Tokenizer()

        async def arun_episode(self, engine, data):
            text, reward = next(left)
            if isinstance(reward, Exception):
                raise reward
            return published.areal_episode([1], ids(text), reward)

    group = asyncio.run(Group(Workflow(), guard, len(rows)).arun_episode(0, {}))
    trains = group["loss_mask"].any(dim=1).tolist()
    found = published.areal_advantages(group, len(rows))
    return [a if t else None for a, t in zip(found, trains, strict=True)]


EVERYWHERE = pytest.mark.parametrize("trainer", [tinker, areal])
POISONED = [("one", 1.0), ("two", 0.0), ("Hail", 1.0), ("three", 1.0)]


def nearly(values):
    return [None if v is None else pytest.approx(v, abs=1e-6) for v in values]


@EVERYWHERE
def test_rejected_rows_do_not_affect_the_others(trainer):
    assert trainer(POISONED, Guard(Words(), tokenizer=Tokenizer())) == nearly(
        [1 / 3, -2 / 3, None, 1 / 3]
    )


@EVERYWHERE
def test_abstentions_are_left_out_too(trainer):
    rows = [("one", 1.0), ("unseen", 1.0), ("two", 0.0)]
    assert trainer(rows, Guard(Words(), tokenizer=Tokenizer())) == nearly([0.5, None, -0.5])


@EVERYWHERE
def test_zero_and_numeric_policies_keep_the_row_in_the_group(trainer):
    zero = Guard(Words(), tokenizer=Tokenizer(), policy=Policy("zero", "zero"))
    assert trainer(POISONED, zero) == nearly([0.5, -0.5, -0.5, 0.5])
    number = Guard(Words(), tokenizer=Tokenizer(), policy=Policy(-1.0, "zero"))
    assert trainer(POISONED, number) == nearly([0.75, -0.25, -1.25, 0.75])


@EVERYWHERE
def test_no_gain_leaves_out_only_rows_that_would_gain(trainer):
    rows = [("one", 1.0), ("two", 0.5), ("Hail", 1.0), ("Hail one", 0.0)]
    guard = Guard(Words(), tokenizer=Tokenizer(), policy=Policy("no_gain", "skip"))
    assert trainer(rows, guard) == nearly([0.5, 0.0, None, -0.5])


@EVERYWHERE
@pytest.mark.parametrize("reward", [NAN, math.inf, -math.inf])
@pytest.mark.parametrize("guard", [Guard(Words(), tokenizer=Tokenizer()), presets.failures_only()])
def test_non_finite_reward_does_not_spoil_the_baseline(trainer, reward, guard):
    rows = [("one", 1.0), ("two", reward), ("three", 0.0)]
    assert trainer(rows, guard) == nearly([0.5, None, -0.5])


@EVERYWHERE
def test_group_without_remaining_rows_is_not_trained_on(trainer):
    assert trainer([("Hail", 1.0), ("Hail", 0.0)], Guard(Words(), tokenizer=Tokenizer())) == [
        None,
        None,
    ]


@EVERYWHERE
def test_guard_failure_stops_the_step(trainer):
    with pytest.raises(AbstainError):
        trainer(
            [("unseen", 1.0)] * 2,
            Guard(Words(), tokenizer=Tokenizer(), policy=Policy("drop", "raise")),
        )


@EVERYWHERE
def test_unsupported_policies_are_refused(trainer):
    with pytest.raises(FrameworkError, match="turn by turn"):
        trainer(POISONED, Guard(Words(), tokenizer=Tokenizer(), policy=Policy(on_long="scale")))


@EVERYWHERE
def test_verifier_gets_tokens_and_log_probs(trainer):
    verifier = Words()
    trainer([("one", 1.0), ("two", 0.0)], Guard(verifier, tokenizer=Tokenizer()))
    first = verifier.shown[0]
    assert (first.text, first.prompt_ids, first.completion_ids) == ("one", (1,), (2, 0))
    assert first.sampler_logprobs == (-0.5, -0.5)


def test_tinker_verifier_gets_node_names_and_truncation():
    verifier = Words()
    tinker([("one", 1.0), ("two", 0.0)], Guard(verifier, tokenizer=Tokenizer()), cut=(1,))
    assert [c.node for c in verifier.shown] == ["n0", "n1"]
    assert [c.finish_reason for c in verifier.shown] == [None, "length"]
    rows = [("one", 1.0), ("two", 0.0), ("three", 0.0)]
    assert tinker(rows, presets.failures_only(), cut=(2,)) == nearly([0.5, -0.5, None])


# What only one of the two supports.


def test_tinker_step_rewards_count_and_metrics_are_kept():
    class Own(published.EnvGroupBuilder):
        async def compute_group_rewards(self, trajectory_group, env_group):
            return [(2.0, {"own": 1.0}) for _ in trajectory_group]

    class Builder(GuardedGroups, Own):
        guard, tokenizer = Guard(Words(), tokenizer=Tokenizer()), Tokenizer()

    turn = published.Transition
    trajectories = [
        published.Trajectory(
            [
                turn(published.observation(1), published.action(ids("one")), 0.25, False),
                turn(
                    published.observation(1, 2, 7), published.action(ids(last)), total - 2.25, True
                ),
            ]
        )
        for last, total in (("two", 3.0), ("Hail", 9.0), ("three", 1.0))
    ]
    found, trains, logged = published.tinker_advantages(
        Builder(), trajectories, [SimpleNamespace()] * 3
    )
    assert found == pytest.approx([1.0, 0.0, -1.0])
    assert trains == [True, False, True]
    assert [x["own"] for x in logged] == [1.0] * 3
    assert [x["guard/left_out"] for x in logged] == [0.0, 1.0, 0.0]


def test_failing_tinker_grader_abstains_or_raises():
    class Broken(published.EnvGroupBuilder):
        async def compute_group_rewards(self, trajectory_group, env_group):
            raise RuntimeError("the judge is down")

    def builder(guard):
        kind = type("B", (GuardedGroups, Broken), {"guard": guard, "tokenizer": Tokenizer()})
        turn = published.Transition(published.observation(1), published.action([2]), 1.0, True)
        return kind(), [published.Trajectory([turn])], [SimpleNamespace()]

    with pytest.raises(RuntimeError, match="judge is down"):
        published.tinker_advantages(*builder(Guard(Words(), tokenizer=Tokenizer())))
    _, trains, _ = published.tinker_advantages(*builder(presets.failures_only()))
    assert trains == [False]


def test_failed_areal_episode_keeps_its_slot_and_trains_nothing():
    rows = [("one", 1.0), ("two", RuntimeError("the sandbox is gone")), ("three", 0.0)]
    assert areal(rows, presets.failures_only()) == nearly([0.5, None, -0.5])
    with pytest.raises(RuntimeError, match="sandbox"):
        areal(rows, Guard(Words(), tokenizer=Tokenizer()))


def test_areal_missing_or_wrong_results_are_reported():
    class Workflow:
        answer = None

        async def arun_episode(self, engine, data):
            return self.answer

    group = Group(Workflow(), Guard(Words(), tokenizer=Tokenizer()), 2, Tokenizer())
    assert asyncio.run(group.arun_episode(None, {})) is None
    Workflow.answer = {"an id": object()}
    with pytest.raises(FrameworkError, match="with one row"):
        asyncio.run(group.arun_episode(None, {}))
    with pytest.raises(ValueError, match="size"):
        Group(Workflow(), Guard(Words(), tokenizer=Tokenizer()), 0, Tokenizer())
