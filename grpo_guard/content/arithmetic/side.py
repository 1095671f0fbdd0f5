"""One side of an equation, and the readings that its notation leaves open.

Human notation is not always arithmetic: a percentage can be a share or a plain number, and ``3 + 4
x 2`` could have been typed into a pocket calculator. A side is first read by the rules of
arithmetic and, if the equation does not hold, under every other applicable reading (`Side.open`).
Anything that cannot be read with certainty raises `Unread`.
"""

import itertools
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final, TypeAlias

from grpo_guard.content.arithmetic.notation import Token
from grpo_guard.content.arithmetic.numbers import Rational, checked, divide, power

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


class Level:
    """The parsed expression within a pair of brackets.

    Attributes:
        values, operators: The expression ``values[0] operators[0] values[1] ...``. The operators
            are + - * / ^, j for a product without a sign, and f for "of".
        negative, percent: Indices of values that had a minus sign, and of values that were
            percentages or fractions of a whole.
        degrees: Number of unknown letters in each value that has any, keyed by the value's index.
    """

    def __init__(self) -> None:
        self.values: list[Rational] = []
        self.operators: list[str] = []
        self.negative: set[int] = set()
        self.percent: set[int] = set()
        self.degrees: dict[int, int] = {}

    def trim(self) -> None:
        """Drop an operand that could not be parsed to its end."""
        at = len(self.operators) + 1
        del self.values[at:]
        self.negative.discard(at)
        self.percent.discard(at)
        self.degrees.pop(at, None)

    def degree(self) -> int | None:
        """Return the number of unknown letters per term, or None if the terms differ.

        The result is also None if there is a power. In both cases, the expression's value depends
        on the letter, which cannot be ignored like a unit.
        """
        terms = [self.degrees.get(0, 0)]
        for at, operator in enumerate(self.operators, 1):
            degree = self.degrees.get(at, 0)
            if operator in "+-":
                terms.append(degree)
            elif operator == "/":
                terms[-1] -= degree
            elif operator == "^":
                return None
            else:
                terms[-1] += degree
        return terms[0] if len(set(terms)) == 1 else None

    def value(self, reading: Reading) -> Rational:
        """Evaluate the expression under a reading of its notation.

        Raises:
            UndefinedError: the expression has no value, or the value is too large.
        """
        if not self.operators:
            return checked(self.values[0])
        if not reading and "^" not in self.operators:
            return _fold(self.values, self.operators, reading, self.percent)
        values, operators = list(self.values), list(self.operators)
        tens = _tens(values, operators) if "tight" in reading else set()
        if "^" in operators:
            _powers(values, operators, self.negative)
        if "tight" in reading:
            _join(values, operators, tens)
        if "stacked" in reading:
            _stack(values, operators)
        whole = len(values) == len(self.values)
        return _fold(values, operators, reading, self.percent if whole else set())


def _powers(values: list[Rational], operators: list[str], negative: set[int]) -> None:
    """Evaluate powers from right to left. A minus before the base applies last: -2^2 = -4."""
    for at in range(len(operators) - 1, -1, -1):
        if operators[at] != "^":
            continue
        base, exponent = values[at], values.pop(at + 1)
        values[at] = -power(-base, exponent) if at in negative else power(base, exponent)
        del operators[at]


def _stack(values: list[Rational], operators: list[str]) -> None:
    """Evaluate a / b / c as a / (b/c), and a / b / c / d as (a/b) / (c/d)."""
    at = 0
    while at < len(operators):
        length = 0
        while at + length < len(operators) and operators[at + length] == "/":
            length += 1
        if length in (2, 3):
            behind = at + length - 1
            values[behind] = divide(values[behind], values.pop(behind + 1))
            del operators[behind]
            length -= 1
        at += max(length, 1)


def _tens(values: list[Rational], operators: list[str]) -> set[int]:
    """Return the indices, after taking powers, of products with a power of ten: 3.2 * 10^8."""
    found, powers = set(), 0
    for at, (operator, behind) in enumerate(pairwise([*operators, ""])):
        powers += operator == "^"
        if operator in "*j" and behind == "^" and values[at + 1] == 10:
            found.add(at - powers)
    return found


def _join(values: list[Rational], operators: list[str], tens: set[int]) -> None:
    """Evaluate a / b(c) as a / (b*c)."""
    for at in range(len(operators) - 1, -1, -1):
        if operators[at] == "j" or at in tens:
            values[at] = checked(values[at] * values.pop(at + 1))
            del operators[at]


def _fold(
    values: list[Rational], operators: list[str], reading: Reading, percent: set[int]
) -> Rational:
    total: Rational = 0
    term = values[0]
    relative, in_order = "relative" in reading, "in_order" in reading
    for at, operator in enumerate(operators, 1):
        value = values[at]
        if operator in "+-":
            total += term
            if relative and at in percent:
                value *= total
            term = value if operator == "+" else -value
            if in_order and not (relative and at in percent):
                term, total = total + term, 0
        elif operator == "/":
            term = divide(term, value)
        else:
            term = checked(term * value)
    return checked(total + term)
