"""What is said of one equation."""

from __future__ import annotations

from typing import NamedTuple

from grpo_guard.content.arithmetic.notation import Rational


class Equation(NamedTuple):
    """One checked equation.

    Args:
        left: What stands to the left, as written, at most 200 characters.
        exact: Its exact value.
        stated: The value of what stands to the right.
        span: Place of the stated result in the text.
        extent: Place of the whole equation, without the units behind a stated number.
        right: Whether the statement holds.
        denied: It does not, and the text says so or only supposes it.
    """

    left: str
    exact: Rational
    stated: Rational
    span: tuple[int, int]
    extent: tuple[int, int]
    right: bool
    denied: bool = False
