"""TRL: where a trainer would undo what a veto has done, and a rejected completion would earn.

The reward functions are not all that makes an advantage. What else there is shows in the trainer
alone, which the decorator first meets with the first batch, before anything is trained on it.
"""

from __future__ import annotations

import functools
import logging
from typing import Any, Final

from grpo_guard.framework import FrameworkError
from grpo_guard.guard import Guard
from grpo_guard.policy import Policy

logger = logging.getLogger(__name__)

# What a guarded trainer builds upon, beside what it overrides with a call of super's.
HOOKS: Final = ("_generate", "_calculate_rewards", "_log_metric", "_log_completion_extra")
_SCORING: Final = "_generate_and_score_completions"


def require_hooks(trainer: type, mixin: type) -> None:
    """Raises FrameworkError where nothing of a mixin would ever be called, or not as it must be."""
    below = trainer.__mro__[trainer.__mro__.index(mixin) + 1 :]
    missing = [hook for hook in HOOKS if not any(hook in vars(kind) for kind in below)]
    own = _scores_by_itself(trainer)
    if missing or own:
        why = f"has no {', '.join(missing)}" if missing else "makes advantages in a way of its own"
        raise FrameworkError(
            f"{own or trainer.__name__} {why}, and its completions would not be guarded; "
            f"{mixin.__name__} is for trl's GRPOTrainer and RLOOTrainer, and what leaves their "
            f"{_SCORING} as it is"
        )


def refuse_leaks(trainer: Any, policy: Policy) -> None:
    """Raises FrameworkError where what the policy makes of a reward would not last."""
    if policy.watches:
        return  # there is no veto that could be undone
    own = _scores_by_itself(type(trainer))
    if own and (policy.leaves_out or policy.on_abstain == "skip"):
        raise FrameworkError(
            f"{own} counts a completion without reward as reward 0 in its group; choose "
            'on_reject="zero" or a number, and on_abstain="zero" or "pass"'
        )
    if adds_kl(trainer) and (policy.on_reject != "drop" or policy.on_abstain == "zero"):
        raise FrameworkError(
            f"{type(trainer).__name__} takes beta times the KL from the rewards after the veto. It "
            "can be negative, and what is rejected would earn by it: choose "
            'Policy(on_reject="drop", on_abstain="skip"), or beta=0'
        )


def check_decorated(trainer: Any, policy: Policy) -> None:
    """What a decorated function finds out at its first batch.

    Raises:
        FrameworkError: as `refuse_leaks`, or a reward counts negatively.
    """
    functions = getattr(trainer, "reward_funcs", None)
    if not isinstance(functions, list):
        return  # no trainer of TRL's
    refuse_leaks(trainer, policy)
    weights = None if policy.watches else getattr(trainer, "reward_weights", None)
    if weights is not None and min(weights.tolist(), default=0.0) < 0:
        raise FrameworkError(
            "reward_weights: a weight below 0 turns the veto's 0 into the best reward of all; use "
            "GuardedGRPOTrainer, or let the function return its cost with a minus and weigh it "
            "above 0"
        )
    names = getattr(trainer, "reward_func_names", [])
    open_ = [name for f, name in zip(functions, names, strict=False) if not _is_guarded(f)]
    if open_:
        logger.warning(
            "reward functions without a guard beside guarded ones: %s. What the guard rejects "
            "still earns their reward; guard all of them as one list, or use GuardedGRPOTrainer",
            ", ".join(open_),
        )


def adds_kl(trainer: Any) -> bool:
    """Whether the KL goes into the reward, as RLOO has it; GRPO has it in the loss."""
    return is_rloo(trainer) and bool(getattr(trainer, "beta", 0))


def is_rloo(trainer: Any) -> bool:
    """By what only RLOO has, since others may have put a class of their own in its place."""
    return hasattr(trainer, "normalize_advantages")


def _scores_by_itself(trainer: type) -> str | None:
    """The experimental trainer that has its own way from rewards to advantages.

    Those of trl 1.6 (replay buffer, GFPO, DPPO) sum up None as 0 before the baseline; the first two
    change the batch's rows behind it.
    """
    for kind in trainer.__mro__:
        if kind.__module__.startswith("trl.experimental.") and _SCORING in vars(kind):
            return kind.__name__
    return None


def _is_guarded(function: Any) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return isinstance(getattr(function, "guard", None), Guard)
