"""What is said of one equation."""

from __future__ import annotations

from typing import NamedTuple

from grpo_guard.content.arithmetic.numbers import Rational


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
        runs_on: Of ``2 + 2 = 5 + 3``, which goes on calculating, what it ought to come to: 7.
        doubt: Why its sides may be more than was read; empty where it was read whole.
    """

    left: str
    exact: Rational
    stated: Rational
    span: tuple[int, int]
    extent: tuple[int, int]
    right: bool
    denied: bool = False
    runs_on: Rational | None = None
    doubt: str = ""

    @property
    def true(self) -> tuple[Rational, ...]:
        """The values with which somebody goes on who knows that the equation is wrong."""
        return (self.exact,) if self.runs_on is None else (self.exact, self.runs_on)
