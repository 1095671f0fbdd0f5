"""Read saved per-node states from a checkpoint, or from a file that others may write to.

The type and range of each value are checked, so that a broken state causes one clear error up front
rather than a wrong verdict mid-run.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class StateError(ValueError):
    """A saved state does not have the expected form; ``why`` explains this to an operator."""

    why = "another guard wrote it, or it is damaged"


@contextmanager
def reading(whose: str) -> Iterator[None]:
    """Turn errors inside the context into a StateError, which says that the state of ``whose`` is
    not one that ``state_dict()`` returned."""
    try:
        yield
    except (
        KeyError, TypeError, ValueError, AttributeError, OverflowError, sqlite3.IntegrityError,
    ) as error:  # fmt: skip
        refused = StateError(
            f"{whose}: expected what state_dict() returned, got {type(error).__name__}: "
            f"{error!s:.80}"
        )
        if isinstance(error, ValueError):  # only our own messages are clear
            refused.why = f"{error!s:.80}"
        raise refused from None


def require_format(state: Any, number: int) -> None:
    """Raise ValueError unless ``state`` is a mapping of this format."""
    if not isinstance(state, dict) or state.get("format") != number:
        got = state.get("format") if isinstance(state, dict) else type(state).__name__
        raise ValueError(f"format {got!r:.40}, but {number} is expected")


def whole(value: Any) -> int:
    """Return ``value`` if it is an integer in [0, 2**63); otherwise raise ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError(f"number {value!r:.40}")
    return value


def number(value: Any, least: float, most: float) -> float:
    """Return ``value`` as a float if it is a number in [least, most], or raise ValueError."""
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    if not plain or not least <= value <= most:
        raise ValueError(f"number {value!r:.40}")
    return float(value)


def text(value: Any) -> str:
    """Return ``value`` if it is a string; otherwise raise TypeError."""
    if not isinstance(value, str):
        raise TypeError(f"text {value!r:.40}")
    return value
