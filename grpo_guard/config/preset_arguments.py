"""`checked`, a decorator for presets: wrong arguments raise an error that names the remedy."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import fields
from types import FunctionType
from typing import Any, Final, TypeVar

from grpo_guard.core.arguments import several_verifiers, worded
from grpo_guard.guard import Guard
from grpo_guard.guard.policy import Policy, not_a_policy

_OF_POLICY: Final = frozenset(field.name for field in fields(Policy))

F = TypeVar("F", bound=Callable[..., Guard])


def checked(preset: F) -> F:
    """Give a preset readable errors about its arguments, as `worded` does for functions."""
    name, made = preset.__name__, worded(preset)

    @functools.wraps(preset)
    def call(*args: Any, **kwargs: Any) -> Guard:
        if len(args) == 1 and isinstance(args[0], FunctionType) and not kwargs:
            raise TypeError(
                f"presets.{name}: expected options in brackets, got the function "
                f"{args[0].__name__!r}; write @presets.{name}(...)"
            )
        for option in kwargs.keys() & _OF_POLICY:
            rule = f"{option}={kwargs[option]!r:.40}"
            raise TypeError(
                f"presets.{name}: expected {option} in a policy, got it as an option; write "
                f"policy=Policy({rule})"
            )
        if not isinstance(kwargs.get("policy"), Policy | None):
            raise not_a_policy(f"presets.{name}.policy", kwargs["policy"])
        if "beside" in kwargs:
            kwargs["beside"] = several_verifiers(f"presets.{name}.beside", kwargs["beside"])
        return made(*args, **kwargs)

    return call  # type: ignore[return-value]
