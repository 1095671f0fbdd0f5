"""TRL: the sampler and the model that the trainer has, against what the verifiers were told."""

from __future__ import annotations

from typing import Any

from grpo_guard.guard import Guard

_OPTIONS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def check_sampler(trainer: Any, guard: Guard) -> None:
    """Warn where they differ.

    Raises:
        MismatchError: they do, and the verifier is strict.
    """
    from grpo_guard.logprob.declared import require_same  # which loads torch, as a trainer has

    args = getattr(trainer, "args", None)
    if args is None or not hasattr(args, "temperature"):
        return  # no trainer that samples
    options = {name: getattr(args, name, None) for name in _OPTIONS}
    more = getattr(args, "generation_kwargs", None) or {}
    options |= {name: more[name] for name in _OPTIONS if name in more}
    accelerator, model = getattr(trainer, "accelerator", None), getattr(trainer, "model", None)
    if accelerator is not None and model is not None:
        model = accelerator.unwrap_model(model)
    require_same(guard.verifier, options, model)
