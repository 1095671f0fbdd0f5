"""Configurations in which verl would not call the guard, and contradictory ones."""

import asyncio

import pytest
from verl.trainer.ppo.reward import get_custom_reward_fn, load_reward_manager

from grpo_guard.adapters.verl.settings import Settings, empty_batch_warning
from grpo_guard.config import ConfigError
from grpo_guard.guard.framework import FrameworkError
from tests.verl.tiny_verl import GUARDED, HONEST, HOOK, UNGUARDED_FUNCTION, batch, guarded_by

OLD_KEY = (
    "custom_reward_function.path=pkg://tests.verl.sums_reward",
    "custom_reward_function.name=guarded",
)


def manager(config, tokenizer):
    async def go():
        return load_reward_manager(config, tokenizer)

    return asyncio.run(go())


def test_key_of_verl_before_0_9_is_refused(configuration, tokenizer, tmp_path):
    config = configuration(*GUARDED, *OLD_KEY, *guarded_by(tmp_path))
    assert get_custom_reward_fn(config) is None  # verl itself does not report it
    with pytest.raises(FrameworkError, match=r"write reward\.custom_reward_function\.path"):
        manager(config, tokenizer)
    both = configuration(*GUARDED, *OLD_KEY, *UNGUARDED_FUNCTION, *guarded_by(tmp_path))
    assert manager(both, tokenizer)


def test_reward_model_that_bypasses_the_manager_is_refused(configuration, tmp_path):
    config = configuration(*GUARDED, *guarded_by(tmp_path), "reward.reward_model.enable=True")
    with pytest.raises(FrameworkError, match="reward model's score would be unguarded"):
        Settings.of(config)


def test_estimator_that_ignores_rewards_is_refused(configuration, tmp_path):
    with pytest.raises(FrameworkError, match="GDPO"):
        Settings.of(configuration(*guarded_by(tmp_path), "algorithm.adv_estimator=gdpo"))


@pytest.mark.parametrize("estimator", ["gae", "reinforce_plus_plus", "remax", "opo"])
def test_estimators_under_which_left_out_rows_would_earn_are_refused(
    configuration, tokenizer, tmp_path, estimator
):
    named = f"algorithm.adv_estimator={estimator}"
    config = configuration(*GUARDED, *guarded_by(tmp_path), named)
    with pytest.raises(FrameworkError, match="would earn that mean"):
        manager(config, tokenizer)
    zero = "policy: {on_reject: zero, on_abstain: zero}\nverifier: {type: arithmetic}\n"
    assert manager(configuration(*GUARDED, *guarded_by(tmp_path, zero), named), tokenizer)


def test_hook_that_is_configured_but_not_run(configuration, tokenizer, tmp_path):
    """As in `fully_async`, which uses its own manager whatever is configured."""
    own = (*guarded_by(tmp_path), "algorithm.adv_estimator=reinforce_plus_plus")
    config = configuration(*GUARDED, *UNGUARDED_FUNCTION, HOOK, *own)

    async def go():
        made = load_reward_manager(config, tokenizer)
        return await made.run_single(batch(tokenizer, [HONEST]))

    with pytest.raises(FrameworkError, match="add the agent-loop hook"):
        asyncio.run(go())


def test_opo_with_the_hook_is_refused(configuration, tmp_path):
    from grpo_guard.adapters.verl.agent_loop import GuardedAgentLoopManager

    own = (*guarded_by(tmp_path), "algorithm.adv_estimator=opo")
    with pytest.raises(FrameworkError, match="opo divides by the tokens"):
        GuardedAgentLoopManager(config=configuration(*GUARDED, HOOK, *own), llm_client=None)


@pytest.mark.parametrize(
    ("strategy", "mode", "policy", "warns"),
    [
        ("megatron", "token-mean", "drop", True),
        ("megatron", "seq-mean-token-mean", "drop", False),
        ("megatron", "token-mean", "keep", False),
        ("fsdp", "token-mean", "drop", False),
    ],
)
def test_a_mini_batch_without_tokens_is_warned_of_where_it_would_end_a_run(
    configuration, tmp_path, strategy, mode, policy, warns
):
    actor = "actor_rollout_ref.actor"
    policy = f"policy: {{on_reject: {policy}}}\nverifier: {{type: arithmetic}}\n"
    config = configuration(
        *GUARDED, HOOK, *guarded_by(tmp_path, policy),
        f"{actor}.strategy={strategy}", f"{actor}.loss_agg_mode={mode}",
    )  # fmt: skip
    warning = empty_batch_warning(config, Settings.of(config).policy())
    assert (warning is not None) is warns
    assert not warns or "set loss_agg_mode=seq-mean-token-mean" in warning


def test_remax_adds_one_sibling(configuration, tmp_path):
    own = guarded_by(tmp_path)
    assert Settings.of(configuration(*own)).rollouts == 4
    assert Settings.of(configuration(*own, "algorithm.adv_estimator=remax")).rollouts == 5


def test_nested_guards_are_refused(configuration, tokenizer, tmp_path):
    name = "reward.custom_reward_function.name=guarded"
    config = configuration(*GUARDED, *UNGUARDED_FUNCTION, name, *guarded_by(tmp_path))
    with pytest.raises(FrameworkError, match="already guarded"):
        manager(config, tokenizer)


@pytest.mark.parametrize(
    ("own", "problem"),
    [
        ([], r"\+grpo_guard\.config=PATH"),
        (["+grpo_guard.config=null"], r"\+grpo_guard\.config=PATH"),
        (["+grpo_guard.config=x", "+grpo_guard.sibling_timeuot=3"], "sibling_timeuot: expected"),
        (["+grpo_guard.config=x", "+grpo_guard.sibling_timeout=0"], "sibling_timeout: expected"),
        (["+grpo_guard.config=x", "+grpo_guard.answer_timeout=no"], "answer_timeout: expected"),
    ],
)
def test_missing_unknown_and_invalid_options_are_named(configuration, own, problem):
    with pytest.raises(FrameworkError, match=problem):
        Settings.of(configuration(*GUARDED, *own))


def test_unreadable_guard_file_stops_the_worker(configuration, tokenizer, tmp_path):
    config = configuration(*GUARDED, "+grpo_guard.config=/nowhere/guard.yaml")
    with pytest.raises(ConfigError, match=r"/nowhere/guard\.yaml"):
        manager(config, tokenizer)
    broken = configuration(*GUARDED, *guarded_by(tmp_path, "verifier: {type: arithmetic}\nx: 1"))
    with pytest.raises(ConfigError, match="x"):
        manager(broken, tokenizer)


def test_agent_loop_hook_refuses_another_reward_manager(configuration, tmp_path):
    from grpo_guard.adapters.verl.agent_loop import GuardedAgentLoopManager

    with pytest.raises(FrameworkError, match="needs GuardedRewardManager"):
        GuardedAgentLoopManager(config=configuration(*guarded_by(tmp_path)), llm_client=None)
    config = configuration(*GUARDED, *OLD_KEY, *guarded_by(tmp_path))
    with pytest.raises(FrameworkError, match="custom_reward_function"):
        GuardedAgentLoopManager(config=config, llm_client=None)


def test_verl_resolves_the_names(configuration):
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn
    from verl.trainer.ppo.reward import resolve_reward_manager_cls
    from verl.utils.import_utils import load_class_from_fqn

    from grpo_guard.adapters.verl.manager import GuardedRewardManager
    from grpo_guard.adapters.verl.plugin import compute_guarded_advantage

    assert resolve_reward_manager_cls(configuration(*GUARDED)) is GuardedRewardManager
    by_plugin = configuration("reward.reward_manager.name=grpo_guard")
    assert resolve_reward_manager_cls(by_plugin) is GuardedRewardManager
    assert get_adv_estimator_fn("grpo_guarded") is compute_guarded_advantage
    for name in ("GuardedAgentLoopManager", "GuardedAgentLoopManagerV0"):
        found = load_class_from_fqn(f"grpo_guard.adapters.verl.agent_loop.{name}")
        assert found.__name__ == name
