"""TRL: compare the trainer's sampler and model with those that the verifiers declare."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from grpo_guard.guard import Guard

_OPTIONS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
# Per trainer, the guards that were compared before and after the first update: until then, a copy
# of the model is equal to it.
_compared: WeakKeyDictionary[Any, set[tuple[int, bool]]] = WeakKeyDictionary()
# Per trainer, the guards whose models were measured against its first batch.
_measured: WeakKeyDictionary[Any, set[int]] = WeakKeyDictionary()


def check_sampler(trainer: Any, guard: Guard) -> None:
    """Warn if they differ, at the first call and once more after the first update.

    Raises:
        MismatchError: they differ, and the verifier is strict.
    """
    args = getattr(trainer, "args", None)
    if args is None or not hasattr(args, "temperature"):
        return  # not a trainer that samples
    updated = getattr(getattr(trainer, "state", None), "global_step", 0) > 0
    known = _compared.setdefault(trainer, set())
    if (id(guard), updated) in known:
        return
    known.add((id(guard), updated))
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
    if not isinstance(longest, int):
        return
    known = _measured.setdefault(trainer, set())
    if id(guard) in known:
        return
    known.add(id(guard))
    from grpo_guard.logprob.sampler_mismatch import warn_of_room

    warn_of_room(guard.verifier, prompts, longest)
