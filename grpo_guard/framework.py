"""Which trainer a reward function is written for, told from its signature.

The adapters live in `grpo_guard.adapters` and are loaded by name, so that the core does not depend
on them and importing grpo_guard stays light.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable
from typing import Any, Protocol, cast


class FrameworkError(TypeError):
    """The calling convention is not recognised, or the framework cannot do what is asked."""


class RewardAdapter(Protocol):
    """One trainer's way of calling a reward function."""

    def wrap(self, reward: Any, guard: Any) -> Any:
        """The guarded form of a reward function (or of a list of them), to be called the same way.

        Raises:
            FrameworkError: this trainer cannot do what the guard's policy asks.
        """


# name -> (where its adapter is, the parameters that give its calling convention away)
FRAMEWORKS: dict[str, tuple[str, frozenset[str]]] = {
    "verl": (
        "grpo_guard.adapters.verl.reward:VerlAdapter",
        frozenset({"solution_str", "ground_truth"}),
    ),
    "openrlhf": (
        "grpo_guard.adapters.openrlhf.reward:OpenRLHFAdapter",
        frozenset({"queries", "prompts", "labels"}),
    ),
    # TRL's would do as well, and comes after it.
    "areal": (
        "grpo_guard.adapters.areal:ArealAdapter",
        frozenset({"prompt", "completions", "prompt_ids", "completion_ids"}),
    ),
    "trl": ("grpo_guard.adapters.trl.reward:TRLAdapter", frozenset({"completions"})),
    # Looks like TRL's, which comes first: it must be named.
    "ms_swift": (
        "grpo_guard.adapters.ms_swift:MsSwiftAdapter",
        frozenset({"completions"}),
    ),
    "slime": ("grpo_guard.adapters.slime:SlimeAdapter", frozenset({"args", "sample"})),
    "verifiers": ("grpo_guard.adapters.verifiers:VerifiersAdapter", frozenset({"trace"})),
}


def adapter_for(reward: Any, framework: str | None = None) -> RewardAdapter:
    """The adapter for a reward function, or for a list of them.

    Raises:
        FrameworkError: not callable, an unknown name, or a signature that no trainer uses.
    """
    if framework is not None and framework not in FRAMEWORKS:
        hint = difflib.get_close_matches(framework, FRAMEWORKS, n=1)
        suggestion = f"; did you mean {hint[0]!r}?" if hint else ""
        raise FrameworkError(
            f"framework: expected one of {', '.join(FRAMEWORKS)}, got {framework!r}{suggestion}"
        )
    functions = list(reward) if isinstance(reward, list | tuple) else [reward]
    if not functions:
        raise FrameworkError("reward: expected a function or a non-empty list, got an empty list")
    names = {framework or _recognise(function) for function in functions}
    if len(names) > 1:
        raise FrameworkError(f"reward functions of several frameworks in one list: {sorted(names)}")
    module, _, attribute = FRAMEWORKS[names.pop()][0].partition(":")
    loader = cast(Callable[[], RewardAdapter], getattr(importlib.import_module(module), attribute))
    return loader()


def _recognise(function: Any) -> str:
    if not callable(function):
        raise FrameworkError(
            f"reward: expected a callable, got {function!r:.80}. A reward model given by its name "
            "cannot be wrapped; wrap a function that calls it."
        )
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        parameters = {}  # type: ignore[assignment]
    for name, (_, telltale) in FRAMEWORKS.items():
        if telltale <= parameters.keys():
            return name
    conventions = "; ".join(
        f"{name}: {', '.join(sorted(telltale))}" for name, (_, telltale) in FRAMEWORKS.items()
    )
    raise FrameworkError(
        f"cannot tell which trainer calls {function!r:.80} with parameters "
        f"({', '.join(parameters)}). Known by their parameters: {conventions}. "
        "Say framework=... to override."
    )
