"""Real Atropos environments, guarded in their own process, post to the real server."""

import asyncio
import json

import pytest

pytest.importorskip("atroposlib", reason="needs a separate environment")

from atroposlib.api.server import app
from atroposlib.envs.base import APIServerConfig, BaseEnv, BaseEnvConfig

from grpo_guard import Guard, Policy, presets
from grpo_guard.adapters.atropos.environment import GuardedEnv
from grpo_guard.guard.framework import FrameworkError
from tests.atropos.atropos_parts import get, group, left_out, post, saved_tokenizer, served
from tests.atropos.test_atropos_groups import Words


class Sums(BaseEnv):
    """Returns canned groups."""

    name = "sums"
    rollouts = None

    async def setup(self):
        pass

    async def get_next_item(self):
        return None

    async def evaluate(self, *args, **kwargs):
        pass

    async def collect_trajectories(self, item):
        if isinstance(self.rollouts, Exception):
            raise self.rollouts
        return self.rollouts, []


@pytest.fixture
def environment(tmp_path):
    def made(guard, **config):
        kind = type("Guarded", (GuardedEnv, Sums), {"guard": guard})
        own = BaseEnvConfig(
            tokenizer_name=saved_tokenizer(tmp_path), group_size=4, use_wandb=False, **config
        )
        return kind(
            own, [APIServerConfig(model_name="m", base_url="http://127.0.0.1:9/v1", api_key="x")]
        )

    return made


def handled(env, rollouts):
    env.rollouts = rollouts
    env.running_items = {"a": {"item": "an item"}}
    env.max_token_len = 64
    return asyncio.run(env.handle_env("a"))


POISONED = group("one", "two", "Hail", "three", scores=[1.0, 0.0, 1.0, 1.0])
REGISTRATION = {
    "wandb_group": "g", "wandb_project": "p", "batch_size": 4, "max_token_len": 64,
    "checkpoint_dir": "", "save_checkpoint_interval": 0, "starting_step": 0, "num_steps": 1,
}  # fmt: skip


def started(url):
    post(url, json.dumps(REGISTRATION).encode())


def test_posted_groups_are_guarded(environment):
    with served(app) as url:
        for path in ("register", "reset_data", "register"):
            (get if "reset" in path else started)(f"{url}/{path}")
        env = environment(Guard(Words()), rollout_server_url=url)
        handled(env, POISONED)
        (sent,) = json.loads(get(f"{url}/batch"))["batch"]
    assert sent["scores"] == pytest.approx([1.0, 0.0, 2 / 3, 1.0])
    assert left_out(sent, 2)
    assert sent["tokens"] == POISONED["tokens"]


def test_lists_of_groups_and_failed_groups(environment):
    env = environment(Guard(Words()))
    assert asyncio.run(env.postprocess_histories(None)) is None
    made = asyncio.run(env.postprocess_histories([POISONED, None]))
    assert left_out(made[0], 2)
    assert made[1] is None


def test_environment_postprocessing_runs_first(environment):
    env = environment(Guard(Words()))

    async def scored(self, trajectories):
        return trajectories | {"scores": [0.5, 0.5, 9.0, 0.5]}

    Sums.postprocess_histories, before = scored, Sums.postprocess_histories
    try:
        made = asyncio.run(env.postprocess_histories(POISONED))
    finally:
        Sums.postprocess_histories = before
    assert made["scores"] == [0.5] * 4


def test_guard_failure_posts_nothing(environment):
    env = environment(Guard(Words(), policy=Policy("drop", "raise")))
    assert handled(env, group("unseen", "one", "two", "three", scores=[1, 0, 0, 1])) is None
    assert handled(env, RuntimeError("the sandbox is gone")) is None


def test_metrics_go_to_the_environment_log(environment):
    env = environment(Guard(Words()))
    logged = {}

    async def wandb_log(self, wandb_metrics=None):
        logged.update(wandb_metrics)

    Sums.wandb_log = wandb_log
    try:
        asyncio.run(env.postprocess_histories(POISONED))
        asyncio.run(env.wandb_log({"own": 1.0}))
    finally:
        del Sums.wandb_log
    assert logged == {"own": 1.0, "guard/accept_rate": 0.75, "guard/reject_rate": 0.25}


def test_unsupported_policy_is_refused_at_construction(environment):
    with pytest.raises(FrameworkError, match="turn by turn"):
        environment(Guard(Words(), policy=Policy(on_long="scale")))


def test_crashed_grader_is_not_scored_zero(environment):
    env = environment(presets.failures_only())
    given = group("one", "two", "three", "on", scores=[1.0, 0.0, float("nan"), 1.0])
    assert asyncio.run(env.postprocess_histories(given))["scores"][2] == pytest.approx(2 / 3)
