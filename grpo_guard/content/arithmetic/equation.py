"""`Equation`: the result of checking one equation."""

import re
from typing import Final, NamedTuple

from grpo_guard.content.arithmetic.numbers import Rational

# The days in a week; a poisoned sum is off by less.
_LEAST_MODULUS: Final = 7
_WHOLE: Final = re.compile(r"[-\u2212]?[0-9]{1,9}")


class Equation(NamedTuple):
    """A single checked equation.

    Args:
        left: The left side as written, at most 200 characters.
        exact: The exact value of the left side.
        stated: The value of the right side.
        span: Span of the stated result in the text.
        extent: Span of the whole equation, without the units after a stated number.
        right: Whether the equation holds.
        denied: Whether the equation does not hold, and the text says so or only supposes it.
        runs_on: The correct value of a right side that keeps calculating: 7 for ``2 + 2 = 5 + 3``.
        doubt: Why the sides could include more than was parsed; empty if everything was parsed.
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
        """The values with which a writer aware of the error would continue."""
        return (self.exact,) if self.runs_on is None else (self.exact, self.runs_on)

    @property
    def modulus(self) -> int:
        """The modulus under which a plain number on the left equals the right side, or 0.

        Examples are "W(0) - 11 = -11 = 15" in a cipher and "17:00 + 10 = 27 = 3" on a clock.
        """
        if not _WHOLE.fullmatch(self.left.strip()) or self.stated.denominator != 1:
            return 0
        apart = abs(int(self.stated - self.exact))
        wraps = 0 <= self.stated < apart and not 0 <= self.exact < apart
        wraps &= self.stated != -self.exact  # a sign that was lost
        return apart if wraps and apart >= _LEAST_MODULUS else 0
