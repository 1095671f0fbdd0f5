"""One side of an equation, and the readings that its notation leaves open.

Human notation is not always arithmetic: a percentage can be a share or a plain number, and ``3 + 4
x 2`` could have been typed into a pocket calculator. A side is first read by the rules of
arithmetic and, if the equation does not hold, under every other applicable reading (`Side.open`).
Anything that cannot be read with certainty raises `Unread`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

from grpo_guard.content.arithmetic.notation import Token
from grpo_guard.content.arithmetic.numbers import Rational

MOST_READINGS: Final = 96
Reading: TypeAlias = frozenset[str]
ARITHMETIC: Final[Reading] = frozenset()
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "percent": ("plain", "relative"),  # 20% is 20; in a + 20%, a share of a
    "scale": ("unscaled",),  # "2 dozen" is 2
    "order": ("in_order",),  # 2 + 3 * 4 is 20
    "tight": ("tight",),  # 6/2(3) divides by 6
    "stack": ("stacked",),  # "2 / 1/4" is 8
    "comma": ("comma",),  # "1,5" is 1.5 and "1.200" is 1200
    "bullet": ("bullet",),  # the dash in front is a bullet
    "factorial": ("exclaimed",),  # "4!" is 4
    **{f"unit{d}": (f"converted{d}",) for d in range(8)},  # 2 hours are 120 minutes
}


class Unread(Exception):
    """Raised if something in the text changes the value and is not understood."""


class Side:
    """One side of an equation.

    Defaults are class attributes, because most sides keep most of them: setting them all on each
    side took a tenth of the parsing time.

    Attributes:
        at, end: Range of the side's tokens, [at, end).
        start, stop: Span of the side in the text, [start, stop).
        value: Value by the rules of arithmetic; None if undefined.
        number: Span of the number if the side is a single plain number, otherwise None.
        decimals: Decimals of that number, or of the mantissa of ``3.0 * 10^8``, otherwise None.
        operators: All operators, at any depth of brackets.
        units: The units of the side's numbers.
        degree: Number of unknown letters in each term: 1 in ``2S + 2S``.
        letters: The unknown letters.
        open: Names of the choices that the notation leaves open, such as ``"percent"``.
        literals: Token index and decimals of each number that could have been rounded.
        first: Value of the part before the first operator.
        literal: Value of the number or mantissa as written.
        dangling: Whether the side is followed by an operator without a readable operand.
    """

    end: int = 0
    start: int = 0
    stop: int = 0
    value: Rational | None = None
    number: tuple[int, int] | None = None
    decimals: int | None = None
    degree: int = 0
    first: Rational = 0
    literal: Rational = 0
    dangling: bool = False

    def __init__(self, at: int) -> None:
        self.at = at
        self.operators: list[str] = []
        self.units: list[str] = []
        self.letters: set[str] = set()
        self.open: set[str] = set()
        self.literals: list[tuple[int, int]] = []

    @property
    def is_number(self) -> bool:
        """Whether the side is a single plain number, such as a stated result."""
        return self.number is not None


def whole_number(at: int, token: Token, value: Rational) -> Side:
    """Make a side that consists of a single number without decimals."""
    side = Side(at)
    side.end, side.start, side.stop = at + 1, token.start, token.end
    side.number, side.decimals = (token.start, token.end), 0
    side.value = side.first = side.literal = value
    return side


def readings(*sides: Side) -> Iterator[Reading]:
    """Yield the readings left open by the sides, except the one by the rules of arithmetic."""
    met = sorted(set().union(*(side.open for side in sides)))
    choices = [("", *_CHOICES[name]) for name in met]
    every = itertools.islice(itertools.product(*choices), 1, MOST_READINGS)
    return (frozenset(filter(None, chosen)) for chosen in every)
