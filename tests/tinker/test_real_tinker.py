"""The Tinker cookbook's own rollouts, advantages and training data, around a guarded group.

Only the sampler is ours: `Policy` returns texts where the service would sample them.
"""

import asyncio
from importlib.util import find_spec

import pytest

if find_spec("tinker_cookbook") is None:
    pytest.skip("make test-tinker: needs a separate environment", allow_module_level=True)

import tinker
from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
from tinker_cookbook.rl.data_processing import (
    assemble_training_data,
    compute_advantages,
)
from tinker_cookbook.rl.rollouts import do_group_rollout
from tinker_cookbook.rl.types import Env, EnvGroupBuilder, StepResult

from grpo_guard import AbstainError, Guard, Policy, presets
from grpo_guard.adapters.tinker import GuardedGroups
from grpo_guard.guard.framework import FrameworkError
from tests.helpers.characters import END, Characters
from tests.helpers.words import Words

PROMPT = [51, 43, 52]
POISONED = [("one", 1.0), ("two", 0.0), ("Hail", 1.0), ("three", 1.0)]


class Sampler(TokenCompleter):
    def __init__(self, texts):
        self.left = iter(texts)

    async def __call__(self, model_input, stop, *args, **kwargs):
        ids = [*Characters().encode(next(self.left)), END]
        return TokensWithLogprobs(tokens=ids, maybe_logprobs=[-0.5] * len(ids))


class OneTurn(Env):
    def __init__(self, reward, node):
        self.reward, self.node = reward, node

    async def initial_observation(self):
        return tinker.ModelInput.from_ints(PROMPT), [END]

    async def step(self, action, *, extra=None):
        return StepResult(
            reward=self.reward,
            episode_done=True,
            next_observation=tinker.ModelInput.from_ints([]),
            next_stop_condition=[],
        )


class Plain(EnvGroupBuilder):
    def __init__(self, rows):
        self.rows = rows

    async def make_envs(self):
        return [OneTurn(reward, f"n{i}") for i, (_, reward) in enumerate(self.rows)]


def rolled_out(rows, guard=None, base=Plain):
    """The cookbook's own group of trajectories, scored and logged as the cookbook does."""
    kind = base
    if guard is not None:
        kind = type("Guarded", (GuardedGroups, base), {"guard": guard, "tokenizer": Characters()})
    return asyncio.run(do_group_rollout(kind(rows), Sampler([text for text, _ in rows])))


def trained(rows, guard=None, **more):
    """The advantage of each trajectory; None if none of its tokens trains."""
    group = rolled_out(rows, guard, **more)
    (advantages,) = compute_advantages([group])
    data, metadata = assemble_training_data([group], [advantages])
    found = [None] * len(rows)
    for datum, place in zip(data, metadata, strict=True):
        mask = datum.loss_fn_inputs["mask"].to_torch()
        if mask.any():
            i = place["traj_idx"]
            weights = datum.loss_fn_inputs["advantages"].to_torch()[mask.bool()]
            assert weights.tolist() == pytest.approx([float(advantages[i])] * len(weights))
            found[i] = float(advantages[i])
    return found


def reading(policy=None, verifier=None):
    return Guard(verifier or Words(), tokenizer=Characters(), policy=policy)


def nearly(values):
    return [None if v is None else pytest.approx(v, abs=1e-6) for v in values]


def test_without_a_guard_poison_earns_reward():
    assert trained(POISONED) == nearly([0.25, -0.75, 0.25, 0.25])


def test_rejected_trajectories_leave_the_baseline_and_train_no_token():
    assert trained(POISONED, reading()) == nearly([1 / 3, -2 / 3, None, 1 / 3])


def test_zeroed_trajectory_stays_in_the_group():
    found = trained(POISONED, reading(Policy("zero", "zero")))
    assert found == nearly([0.5, -0.5, -0.5, 0.5])


def test_failures_only_leaves_out_non_finite_rewards():
    rows = [("one", 1.0), ("two", float("nan")), ("three", 0.0)]
    assert trained(rows, presets.failures_only()) == nearly([0.5, None, -0.5])


def test_group_without_remaining_trajectories_trains_nothing():
    assert trained([("Hail", 1.0), ("Hail", 0.0)], reading()) == [None, None]


def test_verifier_gets_what_the_cookbook_sampled():
    verifier = Words()
    rolled_out([("one", 1.0), ("two", 0.0)], reading(verifier=verifier))
    first = verifier.shown[0]
    ids = (*Characters().encode("one"), END)
    assert (first.text, first.prompt_ids, first.completion_ids) == ("one", tuple(PROMPT), ids)
    assert first.sampler_logprobs == (-0.5,) * len(ids)
    assert [c.node for c in verifier.shown] == ["n0", "n1"]


def test_cookbook_logs_the_guards_findings():
    group = rolled_out(POISONED, reading())
    assert [m["guard/reject"] for m in group.metrics_G] == [0.0, 0.0, 1.0, 0.0]
    assert [m["guard/left_out"] for m in group.metrics_G] == [0.0, 0.0, 1.0, 0.0]


def test_group_reward_counts_and_failing_grader_abstains_or_raises():
    class Bonus(Plain):
        async def compute_group_rewards(self, trajectory_group, env_group):
            return [(2.0 * i, {"own": 1.0}) for i in range(len(trajectory_group))]

    rows = [("one", 1.0), ("Hail", 9.0), ("three", 0.0)]
    assert trained(rows, reading(), base=Bonus) == nearly([-1.5, None, 1.5])

    class Broken(Plain):
        async def compute_group_rewards(self, trajectory_group, env_group):
            raise RuntimeError("the judge is down")

    with pytest.raises(RuntimeError, match="judge is down"):
        rolled_out(rows, reading(), base=Broken)
    assert trained(rows, presets.failures_only(), base=Broken) == [None] * 3


def test_guard_failures_stop_the_group_and_unsupported_policies_are_refused():
    with pytest.raises(AbstainError):
        rolled_out([("unseen", 1.0)] * 2, reading(Policy("drop", "raise")))
    with pytest.raises(FrameworkError, match="turn by turn"):
        rolled_out(POISONED, reading(Policy(on_long="scale")))
