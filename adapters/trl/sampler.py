"""TRL: compare the trainer's sampler and model with those that the verifiers declare."""

from __future__ import annotations

from typing import Any

from grpo_guard.adapters.trl.trainer_checks import is_first
from grpo_guard.guard import Guard

_OPTIONS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def check_sampler(trainer: Any, guard: Guard) -> None:
    """Warn if they differ, at the first call and once more after the first update.

    Raises:
        MismatchError: they differ, and the verifier is strict.
    """
    args = getattr(trainer, "args", None)
    if args is None or not hasattr(args, "temperature"):
        return  # not a trainer that samples
    updated = getattr(getattr(trainer, "state", None), "global_step", 0) > 0
    # Until the first update a copy of the model is equal to it.
    if not is_first(trainer, "sampler", id(guard), updated):
        return
    from grpo_guard.logprob.sampler_mismatch import (
        require_same,  # loads torch, as the trainer already has
    )

    options = {name: getattr(args, name, None) for name in _OPTIONS}
    more = getattr(args, "generation_kwargs", None) or {}
    options |= {name: more[name] for name in _OPTIONS if name in more}
    options["max_new_tokens"] = getattr(args, "max_completion_length", None)
    accelerator, model = getattr(trainer, "accelerator", None), getattr(trainer, "model", None)
    if accelerator is not None and model is not None:
        model = accelerator.unwrap_model(model)
    require_same(guard.verifier, None if updated else options, model)


def check_room(trainer: Any, guard: Guard, prompts: Any) -> None:
    """Warn at a trainer's first batch if its longest completions would not fit into the model."""
    longest = getattr(trainer, "max_completion_length", None)
    if not isinstance(longest, int) or not is_first(trainer, "room", id(guard)):
        return
    from grpo_guard.logprob.sampler_mismatch import warn_of_room

    warn_of_room(guard.verifier, prompts, longest)
