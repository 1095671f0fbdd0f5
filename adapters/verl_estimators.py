"""verl: with which advantage estimators a completion that is left out earns nothing.

What is left out keeps its place in verl's batch, with the mean of its group as its score. Where an
advantage is what a score has above that mean, this is nothing. Other estimators compare with
something else (the whole batch, a greedy rollout, a critic, lengths): there the mean of an easy
group is a good reward, and only the agent-loop hook takes such a completion out.
"""

from __future__ import annotations

from typing import Any, Final

from grpo_guard.adapters.reward_function import forbid_no_gain
from grpo_guard.framework import FrameworkError
from grpo_guard.policy import Policy

_MEAN_IS_NOTHING: Final = frozenset(
    {"grpo", "grpo_guarded", "grpo_passk", "grpo_vectorized", "rloo", "rloo_vectorized", "gpg"}
)


def needs_hook(config: Any, policy: Policy) -> bool:
    """Whether what the policy leaves out would earn something but for the agent-loop hook."""
    leaves_out = policy.leaves_out or policy.on_abstain == "skip"
    return leaves_out and str(config.algorithm.adv_estimator) not in _MEAN_IS_NOTHING


def check_estimator(config: Any, policy: Policy) -> None:
    """Refuse estimators that do not bear what the policy leaves out.

    Raises:
        FrameworkError: ``on_reject="no_gain"``; see `needs_hook`, and the configuration names no
            agent-loop manager; or OPO with one: it divides by a group's tokens, and where the hook
            takes a whole group out, one NaN makes the gradients of the batch NaN.
    """
    # Whom the timeout cuts off from the others would be compared with half a group.
    forbid_no_gain(policy, "verl's manager", 'choose on_reject="drop"')
    estimator = config.algorithm.adv_estimator
    named = config.actor_rollout_ref.rollout.agent.get("agent_loop_manager_class")
    if estimator == "opo" and named:
        raise FrameworkError(
            "verl: adv_estimator=opo divides by the tokens of a group, and the agent-loop hook may "
            "leave none; choose another adv_estimator, or on_reject and on_abstain that leave "
            "nothing out, without the hook"
        )
    if needs_hook(config, policy) and not named:
        raise hook_missing(estimator)


def hook_missing(estimator: Any) -> FrameworkError:
    """What to say where it is needed."""
    return FrameworkError(
        f"verl: adv_estimator={estimator} does not compare with the mean of the group, so that "
        "what on_reject=drop or on_abstain=skip leaves out would earn that mean; add the "
        "agent-loop hook (docs/verl.md), or choose on_reject=zero and on_abstain=zero"
    )
