"""What every trainer adapter needs to know of a reward function, inspected once at decoration."""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from grpo_guard.completion import shown
from grpo_guard.framework import FrameworkError
from grpo_guard.policy import Policy


@dataclass(frozen=True)
class RewardFunction:
    """A user's reward function.

    Args:
        call: The function itself.
        name: What the trainer's metrics call it; the class name for an object without ``__name__``.
        is_async: Whether a call returns something to await.
        keywords: The keywords that it accepts; None = any.
    """

    call: Callable[..., Any]
    name: str
    is_async: bool
    keywords: frozenset[str] | None

    @classmethod
    def inspect(cls, reward: Any) -> RewardFunction:
        """Raises FrameworkError for what is no function: a model, a model's name, a class."""
        torch = sys.modules.get("torch")  # a module instance exists only where torch is loaded
        is_model = torch is not None and isinstance(reward, torch.nn.Module)
        if is_model or isinstance(reward, str):
            what = repr(reward) if isinstance(reward, str) else f"a {type(reward).__name__} model"
            raise FrameworkError(
                f"reward: expected a function, got {what}. The trainer feeds a reward model "
                "tokens, not completions; wrap a function that calls it."
            )
        if not callable(reward) or inspect.isclass(reward):
            raise FrameworkError(
                f"reward: expected a function or a callable object, got {reward!r:.80}"
            )
        bare = reward
        while isinstance(bare, functools.partial):
            bare = bare.func
        name = getattr(reward, "__name__", None) or getattr(bare, "__name__", type(bare).__name__)
        is_async = inspect.iscoroutinefunction(bare) or inspect.iscoroutinefunction(
            getattr(bare, "__call__", None)  # noqa: B004 (the method is looked at, not called)
        )
        return cls(reward, str(name), is_async, _keywords(reward))

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the trainer's keywords that the function accepts."""
        accepted = self.keywords
        return {k: v for k, v in given.items() if accepted is None or k in accepted}

    def rewards(self, result: Any, expected: int) -> list[float | None]:
        """The function's result as plain numbers, one per completion.

        Raises:
            TypeError: not a one-dimensional run of numbers and Nones.
            ValueError: not ``expected`` of them.
        """
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise TypeError(f"{self.name}: returned an awaitable; declare it with `async def`")
        shape = getattr(result, "shape", None)
        if shape is not None and len(shape) != 1:
            raise TypeError(
                f"{self.name}: expected {expected} rewards, one per completion, "
                f"got an array of shape {tuple(shape)}"
            )
        if isinstance(result, str | bytes | Mapping) or not isinstance(result, Iterable):
            raise TypeError(
                f"{self.name}: expected a list of {expected} rewards, got {shown(result)}"
            )
        values = result.tolist() if hasattr(result, "tolist") else result  # one copy off a GPU
        rewards = [self._number(value, row) for row, value in enumerate(values)]
        if len(rewards) != expected:
            raise ValueError(
                f"{self.name}: expected {expected} rewards, one per completion, got {len(rewards)}"
            )
        return rewards

    def _number(self, value: Any, row: int) -> float | None:
        try:
            if isinstance(value, str | bytes):
                raise TypeError
            return None if value is None else float(value)
        except OverflowError:  # an integer out of an author's text has no end
            return math.copysign(math.inf, value)
        except (TypeError, ValueError):
            raise TypeError(
                f"{self.name}: expected a number or None as reward {row}, got {shown(value)}"
            ) from None

    def dress(self, wrapper: Any) -> Any:
        """Give the wrapper the function's name, docstring and place, so that metrics name it.

        Only the outside is copied: an object's own attributes stay where they are.
        """
        functools.update_wrapper(wrapper, self.call, updated=())
        wrapper.__name__ = self.name
        return wrapper


def forbid_leaving_out(policy: Policy, trainer: str) -> None:
    """For trainers whose reward is one number that always enters its group's baseline.

    Raises:
        FrameworkError: the policy may leave a completion out of its group, or scales by the group.
    """
    if policy.leaves_out:
        raise FrameworkError(
            f"{trainer} cannot leave one completion out of its group from a reward function, as "
            f'Policy(on_reject="{policy.on_reject}") asks; choose on_reject="zero" or a number.'
        )
    if policy.on_abstain == "skip":
        raise FrameworkError(
            f"{trainer} cannot leave one completion out of its group from a reward function, as "
            'Policy(on_abstain="skip") asks; choose on_abstain="zero" (no reward for what the '
            'guard could not look at) or "pass" (its reward unguarded).'
        )
    if policy.on_long == "scale":
        raise FrameworkError(
            f"{trainer} shows its reward function one completion at a time, and "
            'Policy(on_long="scale") compares those of a group; choose on_long="keep".'
        )


def forbid_no_gain(policy: Policy, place: str, instead: str) -> None:
    """For places that see less than a group's whole rewards.

    Raises:
        FrameworkError: the policy compares a rejected completion with the mean of its group.
    """
    if policy.on_reject == "no_gain":
        raise FrameworkError(
            f"{place} does not see the whole reward of a whole group, with which "
            f'on_reject="no_gain" compares; {instead}'
        )


def _keywords(reward: Callable[..., Any]) -> frozenset[str] | None:
    try:
        # Not through __wrapped__: what counts is what this callable accepts. A guard inside a
        # guard would otherwise be called without the ids that its inner function does not name.
        parameters = inspect.signature(reward, follow_wrapped=False).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return frozenset(
        p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    )
