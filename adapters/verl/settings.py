"""verl: the guard's settings in a run's configuration, and the rules that verl can carry out.

The guard's own options are under ``grpo_guard`` at the top level:

+grpo_guard.config=/shared/guard.yaml +grpo_guard.sibling_timeout=600
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from grpo_guard.adapters.releases import require_release
from grpo_guard.adapters.reward_function import chosen_policy, without_no_gain
from grpo_guard.config import GuardConfig
from grpo_guard.core.pages import page
from grpo_guard.guard.framework import FrameworkError
from grpo_guard.guard.policy import Policy

# Maximum wait in seconds if the number of siblings is unknown: validation often samples one answer
# per prompt and training eight, and a reward worker cannot tell them apart.
UNKNOWN_SIBLINGS_TIMEOUT = 30.0
# A left-out completion keeps its place in verl's batch, with the mean of its group as its score.
# With the estimators below, its advantage is then 0. Other estimators compare the score with
# something else (the whole batch, a greedy rollout, a critic, lengths): there, an easy group's mean
# is a good reward, and only the agent-loop hook can remove a left-out completion.
_MEAN_IS_NOTHING: Final = frozenset(
    {"grpo", "grpo_guarded", "grpo_passk", "grpo_vectorized", "rloo", "rloo_vectorized", "gpg"}
)
# Engines of verl that skip an update if its gradient is not finite.
_SKIP_NAN: Final = frozenset({"fsdp", "fsdp2", "automodel", "torchtitan"})


@dataclass(frozen=True, slots=True)
class Settings:
    """The guard's part of verl's configuration: the options under ``grpo_guard`` (docs/verl.md),
    and verl's own ``reward.num_workers``, rollouts per prompt (`training_rollouts`),
    ``rollout.val_kwargs.n``, ``algorithm.adv_estimator``, whether an agent-loop manager is set, and
    ``algorithm.rollout_correction.bypass_mode``."""

    config: str
    manager: str = "naive"
    sibling_timeout: float = 300.0
    answer_timeout: float = 600.0
    metrics: str | None = None
    actor_options: dict[str, Any] = field(default_factory=dict)
    read_early: bool = True
    num_workers: int = 8
    rollouts: int = 1
    validation_rollouts: int = 1
    estimator: str = "grpo"
    hooked: bool = False
    bypass: bool = False

    @classmethod
    def of(cls, config: Any) -> "Settings":
        """Read the settings from verl's configuration. Raises FrameworkError if an option is
        missing or invalid, see `check_config`."""
        require_release("verl")
        check_config(config)
        given = config.get("grpo_guard")
        if hasattr(given, "_metadata"):  # an OmegaConf node
            from omegaconf import OmegaConf

            given = OmegaConf.to_container(given, resolve=True)
        own = [f.name for f in fields(cls)][:7]
        if not isinstance(given, Mapping) or not isinstance(given.get("config"), str):
            raise FrameworkError(
                "verl: expected the guard's YAML file as +grpo_guard.config=PATH, "
                f"got {given!r:.80}"
            )
        unknown = sorted(set(given) - set(own))
        if unknown:
            raise FrameworkError(f"verl: grpo_guard.{unknown[0]}: expected one of {', '.join(own)}")
        for name in ("sibling_timeout", "answer_timeout"):
            value = given.get(name, 1.0)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise FrameworkError(
                    f"verl: grpo_guard.{name}: expected seconds above 0, got {value!r:.80}"
                )
        if not isinstance(given.get("read_early", True), bool):
            raise FrameworkError(
                "verl: grpo_guard.read_early: expected true or false, "
                f"got {given['read_early']!r:.80}"
            )
        rollout = config.actor_rollout_ref.rollout
        return cls(
            **given,
            num_workers=int(config.reward.num_workers),
            rollouts=training_rollouts(config),
            validation_rollouts=int(rollout.val_kwargs.n),
            estimator=str(config.algorithm.adv_estimator),
            hooked=bool(rollout.agent.get("agent_loop_manager_class")),
            bypass=bypasses(config),
        )

    def policy(self) -> Policy:
        """The guard's policy, in a form that verl can carry out; see `policy_for`."""
        policy = self.guard_config().whole_policy()
        return policy_for(self.estimator, policy, hooked=self.hooked, bypass=self.bypass)

    def guard_config(self) -> GuardConfig:
        """Read the guard's file. Raises ConfigError if the file cannot be read or a field is
        invalid."""
        return GuardConfig.from_yaml(self.config)


def training_rollouts(config: Any) -> int:
    """The number of rollouts per prompt in training; ReMax adds a greedy rollout."""
    greedy = config.algorithm.adv_estimator == "remax"
    return int(config.actor_rollout_ref.rollout.n) + int(greedy)


def bypasses(config: Any) -> bool:
    """Whether verl's rollout correction runs in bypass mode."""
    return bool((config.algorithm.get("rollout_correction") or {}).get("bypass_mode"))


def check_config(config: Any) -> None:
    """Refuse configurations where verl would not call the guard.

    Raises:
        FrameworkError: the reward function is set under the key of verl before 0.9, which 0.9
            ignores; there is a reward model without a reward function, so that its score bypasses
            the manager; or the estimator is GDPO, whose advantages come from the parts of a reward
            rather than the reward itself.
    """
    legacy = config.get("custom_reward_function") or {}
    reward = config.reward
    function = (reward.get("custom_reward_function") or {}).get("path")
    if legacy.get("path") and not function:
        raise FrameworkError(
            f"verl 0.9 ignores custom_reward_function.path={legacy.get('path')} at the top level "
            "and would grade with its own default; write reward.custom_reward_function.path=..."
        )
    if reward.reward_model.enable and not function:
        raise FrameworkError(
            "verl calls no reward manager if reward.reward_model.enable is set without a reward "
            "function: the reward model's score would be unguarded. Name a function in "
            "reward.custom_reward_function.path that asks the model at reward_router_address."
        )
    if config.algorithm.adv_estimator == "gdpo":
        raise FrameworkError(
            "verl takes GDPO's advantages from the parts that the reward function names, not from "
            "the reward, so that a veto would change nothing; choose another adv_estimator"
        )


def empty_batch_warning(config: Any, policy: Policy) -> str | None:
    """A warning if training could break once the hook, outside bypass mode, has emptied every mask
    in a mini-batch: ``token-mean`` divides by the number of tokens, and some engines apply the
    resulting NaN. None if this cannot happen."""
    actor = config.actor_rollout_ref.actor
    if (
        not _leaves_out(policy)
        or actor.loss_agg_mode != "token-mean"
        or actor.strategy in _SKIP_NAN
    ):
        return None
    return (
        "verl: if the guard leaves out every row of a mini-batch, "
        "actor_rollout_ref.actor.loss_agg_mode=token-mean divides by 0 tokens, and "
        f"strategy={actor.strategy} applies the NaN; set loss_agg_mode=seq-mean-token-mean"
    )


def needs_hook(estimator: str, policy: Policy) -> bool:
    """Whether left-out completions would earn a reward without the agent-loop hook."""
    return _leaves_out(policy) and estimator not in _MEAN_IS_NOTHING


def _leaves_out(policy: Policy) -> bool:
    return policy.leaves_out or policy.rules("on_abstain")[0] == "skip"


def policy_for(estimator: str, policy: Policy, *, hooked: bool, bypass: bool = False) -> Policy:
    """Choose the rules of a policy that verl can carry out under an advantage estimator; the
    arguments are as in `Settings`. In bypass mode, the hook empties no mask.

    Raises:
        FrameworkError: the policy has ``on_reject="no_gain"``, or leaves completions out in a way
            that needs the missing hook; the estimator needs empty masks but runs in bypass mode; or
            the estimator is OPO and the hook is present. OPO divides by the number of tokens in a
            group: if the hook removed a whole group, one NaN would make the gradients of the batch
            NaN.
    """
    if bypass and estimator == "grpo_guarded" and not policy.watches:
        raise FrameworkError(
            "verl: adv_estimator=grpo_guarded leaves out rows without a mask, and in bypass mode "
            "there are none: verl rejects in the actor, after the advantages; set "
            "algorithm.rollout_correction.bypass_mode=False, or choose adv_estimator=grpo"
        )
    if estimator == "opo" and hooked and not policy.watches:
        raise FrameworkError(
            "verl: adv_estimator=opo divides by the tokens of a group, and the agent-loop hook may "
            "leave none; choose another adv_estimator, or on_reject and on_abstain that leave "
            "nothing out, without the hook"
        )
    # "no_gain" cannot work: a timeout can separate a trajectory from its siblings, and it would
    # then be compared with only part of its group.
    cannot = without_no_gain("verl's manager", 'choose on_reject="drop"')
    if estimator not in _MEAN_IS_NOTHING and (bypass or not hooked):
        missing = str(hook_missing(estimator, bypass))
        cannot |= {("on_reject", "drop"): missing, ("on_abstain", "skip"): missing}
    return chosen_policy(policy, "verl's manager", cannot)


def hook_missing(estimator: str, bypass: bool = False) -> FrameworkError:
    """The error to raise if the agent-loop hook is needed but missing, or cannot empty a mask."""
    remedy = (
        ", and in bypass mode the agent-loop hook can empty no mask; set "
        "algorithm.rollout_correction.bypass_mode=False"
        if bypass
        else f"; add the agent-loop hook ({page('verl')})"
    )
    return FrameworkError(
        f"verl: adv_estimator={estimator} does not compare with the mean of the group, so that "
        f"what on_reject=drop or on_abstain=skip leaves out would earn that mean{remedy}, or "
        "choose on_reject=zero and on_abstain=zero"
    )
