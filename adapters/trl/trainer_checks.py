"""TRL: refuse trainers that would undo a veto, and compare a trainer's sampler and model with the
ones that the verifiers declare.

Reward functions are not the only source of an advantage. The other sources are visible only in the
trainer, which a decorated function first sees with the first batch, before anything is trained.
"""

import logging
from typing import Any, Final
from weakref import WeakKeyDictionary

from grpo_guard.adapters.reward_function import is_guarded
from grpo_guard.guard import Guard
from grpo_guard.guard.framework import FrameworkError
from grpo_guard.guard.policy import Policy

logger = logging.getLogger(__name__)

# The trainer's methods that a guarded trainer calls or overrides.
HOOKS: Final = ("_generate", "_calculate_rewards", "_log_metric", "_log_completion_extra")
_SCORING: Final = "_generate_and_score_completions"
# Optimizers that keep squared gradients in the parameters' own format, where small values become 0.
# The optimizers of bitsandbytes, torchao, DeepSpeed and FSDP compute in float32.
_OWN_FORMAT: Final = ("adamw_torch", "adamw_torch_fused")
_OPTIONS: Final = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
_checked: WeakKeyDictionary[Any, set[tuple[object, ...]]] = WeakKeyDictionary()


def is_first(trainer: Any, *check: object) -> bool:
    """Whether this is the first call with this trainer and this check."""
    known = _checked.setdefault(trainer, set())
    new = check not in known
    known.add(check)
    return new


def require_hooks(trainer: type, mixin: type) -> None:
    """Raise FrameworkError if a trainer would not call a mixin's methods as the mixin requires."""
    below = trainer.__mro__[trainer.__mro__.index(mixin) + 1 :]
    missing = [hook for hook in HOOKS if not any(hook in vars(kind) for kind in below)]
    own = _scores_by_itself(trainer)
    if missing or own:
        why = f"has no {', '.join(missing)}" if missing else "computes advantages in its own way"
        raise FrameworkError(
            f"{own or trainer.__name__} {why}, and its completions would not be guarded; "
            f"{mixin.__name__} is for trl's GRPOTrainer and RLOOTrainer, and subclasses that keep "
            f"their {_SCORING}"
        )


def refuse_leaks(trainer: Any, policy: Policy) -> None:
    """Raise FrameworkError if the trainer would undo the policy's changes to a reward."""
    if policy.watches:
        return  # there is no veto that could be undone
    own = _scores_by_itself(type(trainer))
    if own and (policy.leaves_out or policy.on_abstain == "skip"):
        raise FrameworkError(
            f"{own} counts a completion without reward as reward 0 in its group; choose "
            'on_reject="zero" or a number, and on_abstain="zero" or "pass"'
        )
    adds_kl = is_rloo(trainer) and bool(getattr(trainer, "beta", 0))  # in GRPO, it is in the loss
    if adds_kl and (policy.on_reject != "drop" or policy.on_abstain == "zero"):
        raise FrameworkError(
            f"{type(trainer).__name__} subtracts beta times the KL from rewards after the veto. It "
            "can be negative, and a rejected completion would earn by it: choose "
            'Policy(on_reject="drop", on_abstain="skip"), or beta=0'
        )


def check_decorated(trainer: Any, policy: Policy) -> None:
    """Check the trainer of a decorated function at its first batch. Raises FrameworkError as
    `refuse_leaks` does, or if a reward weight is negative."""
    functions = getattr(trainer, "reward_funcs", None)
    if not isinstance(functions, list):
        return  # not one of TRL's trainers
    refuse_leaks(trainer, policy)
    weights = None if policy.watches else getattr(trainer, "reward_weights", None)
    if weights is not None and min(weights.tolist(), default=0.0) < 0:
        raise FrameworkError(
            "reward_weights: a weight below 0 turns the veto's 0 into the best reward of all; use "
            "GuardedGRPOTrainer, or let the function return its cost with a minus and give it "
            "a weight above 0"
        )
    names = getattr(trainer, "reward_func_names", [])
    unguarded = [name for f, name in zip(functions, names, strict=False) if not is_guarded(f)]
    if unguarded:
        logger.warning(
            "reward functions without a guard next to guarded ones: %s. Rejected completions still "
            "earn their reward; guard all of them as one list, or use GuardedGRPOTrainer",
            ", ".join(unguarded),
        )


def warn_of_half_precision(trainer: Any) -> None:
    """Log a warning, once per trainer, if it trains float16 parameters with Adam. The policy then
    collapses within a few steps, with or without a guard; with a guard, it looks as if honest work
    were being rejected."""
    optimizer = getattr(getattr(trainer, "args", None), "optim", "")
    sharded = any(getattr(trainer, f"is_{one}_enabled", False) for one in ("deepspeed", "fsdp"))
    if sharded or str(getattr(optimizer, "value", optimizer)) not in _OWN_FORMAT:
        return
    parameters: Any = getattr(getattr(trainer, "model", None), "parameters", list)
    half = any(str(p.dtype) == "torch.float16" and p.requires_grad for p in parameters())
    if half and is_first(trainer, "precision"):
        logger.warning(
            "the trained parameters are float16, in which Adam loses small squared gradients: the "
            "policy falls apart within a few steps, and its completions are rejected. Load it with "
            "dtype=torch.float32 or torch.bfloat16"
        )


def check_sampler(trainer: Any, guard: Guard) -> None:
    """Warn if a trainer's sampler or model differs from that of the verifiers, at the first call
    and once more after the first update. Raises MismatchError if a verifier is strict."""
    args = getattr(trainer, "args", None)
    if args is None or not hasattr(args, "temperature"):
        return  # not a trainer that samples
    updated = getattr(getattr(trainer, "state", None), "global_step", 0) > 0
    # Until the first update, a copy of the model equals the model.
    if not is_first(trainer, "sampler", id(guard), updated):
        return
    from grpo_guard.logprob.sampler_mismatch import require_same  # loads torch

    options = {name: getattr(args, name, None) for name in _OPTIONS}
    more = getattr(args, "generation_kwargs", None) or {}
    options |= {name: more[name] for name in _OPTIONS if name in more}
    options["max_new_tokens"] = getattr(args, "max_completion_length", None)
    accelerator, model = getattr(trainer, "accelerator", None), getattr(trainer, "model", None)
    if accelerator is not None and model is not None:
        model = accelerator.unwrap_model(model)
    require_same(guard.verifier, None if updated else options, model)


def check_room(trainer: Any, guard: Guard, prompts: Any) -> None:
    """Warn, at a trainer's first batch, if the longest possible completions would not fit into the
    model's context."""
    longest = getattr(trainer, "max_completion_length", None)
    if not isinstance(longest, int) or not is_first(trainer, "room", id(guard)):
        return
    from grpo_guard.logprob.sampler_mismatch import warn_of_room

    warn_of_room(guard.verifier, prompts, longest)


def is_rloo(trainer: Any) -> bool:
    """Whether a trainer is an RLOO trainer, recognised by an attribute that only RLOO has, because
    the class might have been replaced."""
    return hasattr(trainer, "normalize_advantages")


def _scores_by_itself(trainer: type) -> str | None:
    """The name of the experimental trainer among the bases that computes advantages in its own way,
    or None. The experimental trainers in trl 1.6 (replay buffer, GFPO, DPPO) count None as 0 before
    the baseline; the first two also change the batch's rows afterwards."""
    for kind in trainer.__mro__:
        if kind.__module__.startswith("trl.experimental.") and _SCORING in vars(kind):
            return kind.__name__
    return None
