"""The operands and operators within a pair of brackets, and their value under a reading."""

from __future__ import annotations

from itertools import pairwise

from grpo_guard.content.arithmetic.numbers import Rational, checked, divide, power
from grpo_guard.content.arithmetic.side import Reading


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
