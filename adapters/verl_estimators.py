"""verl: with which advantage estimators a completion that is left out earns nothing.

What is left out keeps its place in verl's batch, with the mean of its group as its score. Where an
advantage is what a score has above that mean, this is nothing. Other estimators compare with
something else (the whole batch, a greedy rollout, a critic, lengths): there the mean of an easy
group is a good reward, and only the agent-loop hook takes such a completion out.
"""

from __future__ import annotations

from typing import Final

from grpo_guard.adapters.reward_function import chosen_policy, without_no_gain
from grpo_guard.framework import FrameworkError
from grpo_guard.policy import Policy

_MEAN_IS_NOTHING: Final = frozenset(
    {"grpo", "grpo_guarded", "grpo_passk", "grpo_vectorized", "rloo", "rloo_vectorized", "gpg"}
)


def needs_hook(estimator: str, policy: Policy) -> bool:
    """Whether what the policy leaves out would earn something but for the agent-loop hook."""
    leaves_out = policy.leaves_out or policy.rules("on_abstain")[0] == "skip"
    return leaves_out and estimator not in _MEAN_IS_NOTHING


def policy_for(estimator: str, policy: Policy, *, hooked: bool) -> Policy:
    """The policy's rules that verl can carry out under this estimator.

    Args:
        estimator: ``algorithm.adv_estimator``.
        policy: As it stands in the guard's file.
        hooked: The configuration names an agent-loop manager.

    Raises:
        FrameworkError: ``on_reject="no_gain"``; leaving out, where that needs the hook; or OPO with
            it, which divides by a group's tokens: where the hook takes a whole group out, one NaN
            makes the gradients of the batch NaN.
    """
    if estimator == "opo" and hooked:
        raise FrameworkError(
            "verl: adv_estimator=opo divides by the tokens of a group, and the agent-loop hook may "
            "leave none; choose another adv_estimator, or on_reject and on_abstain that leave "
            "nothing out, without the hook"
        )
    # Whom the timeout cuts off from the others would be compared with half a group.
    cannot = without_no_gain("verl's manager", 'choose on_reject="drop"')
    if estimator not in _MEAN_IS_NOTHING and not hooked:
        missing = str(hook_missing(estimator))
        cannot |= {("on_reject", "drop"): missing, ("on_abstain", "skip"): missing}
    return chosen_policy(policy, "verl's manager", cannot)


def hook_missing(estimator: str) -> FrameworkError:
    """What to say where it is needed."""
    return FrameworkError(
        f"verl: adv_estimator={estimator} does not compare with the mean of the group, so that "
        "what on_reject=drop or on_abstain=skip leaves out would earn that mean; add the "
        "agent-loop hook (docs/verl.md), or choose on_reject=zero and on_abstain=zero"
    )
