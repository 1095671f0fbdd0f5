"""Operands and operators of one pair of brackets, and what they come to under a reading."""

from __future__ import annotations

from dataclasses import dataclass, field

from grpo_guard.content.arithmetic.numbers import Rational, checked, divide, power
from grpo_guard.content.arithmetic.side import Reading


@dataclass(slots=True)
class Level:
    """What has been read between two brackets.

    Args:
        values, operators: ``values[0] operators[0] values[1] ...``; the operators are + - * / ^, j
            for a product without a sign and f for "of".
        negative, percent: Whether each value had a minus or was a percentage or part of a whole.
        degrees: How many unknown letters each has.
    """

    values: list[Rational] = field(default_factory=list)
    operators: list[str] = field(default_factory=list)
    negative: list[bool] = field(default_factory=list)
    percent: list[bool] = field(default_factory=list)
    degrees: list[int] = field(default_factory=list)

    def add(self, value: Rational, negative: bool) -> None:
        """A number with nothing to it but its sign."""
        self.values.append(value)
        self.negative.append(negative)
        self.percent.append(False)
        self.degrees.append(0)

    def trim(self) -> None:
        """Forget an operand that could not be read to its end."""
        count = len(self.operators) + 1
        for part in (self.values, self.negative, self.percent, self.degrees):
            del part[count:]

    def behind_label(self) -> Level:
        """Without the first operand."""
        return Level(
            self.values[1:],
            self.operators[1:],
            self.negative[1:],
            self.percent[1:],
            self.degrees[1:],
        )

    def degree(self) -> int | None:
        """How many unknown letters each term has.

        None where the terms differ, so that the letter stands for a value of its own.
        """
        if not any(self.degrees):
            return 0
        terms = [self.degrees[0]]
        for operator, degree in zip(self.operators, self.degrees[1:], strict=True):
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
        """What it comes to.

        Raises:
            UndefinedError: it has no value, or one that is too large.
        """
        values, operators = list(self.values), list(self.operators)
        if not operators:
            return checked(values[0])
        if "^" in operators:
            _powers(values, operators, self, reading)
        if "tight" in reading:
            _join(values, operators)
        if "stacked" in reading:
            _stack(values, operators)
        if "of_last" in reading and operators[0] == "f":
            return checked(values[0] * _fold(values[1:], operators[1:], reading, []))
        whole = len(values) == len(self.values)
        return _fold(values, operators, reading, self.percent if whole else [])


def _powers(values: list[Rational], operators: list[str], read: Level, reading: Reading) -> None:
    """Right to left; a sign in front of the base counts after the power, as in -2^2 = -4."""
    for at in range(len(operators) - 1, -1, -1):
        if operators[at] != "^":
            continue
        base, exponent = values[at], values.pop(at + 1)
        outside = read.negative[at] and "signs_first" not in reading
        value = power(-base if outside else base, exponent)
        values[at] = -value if outside else value
        del operators[at]


def _stack(values: list[Rational], operators: list[str]) -> None:
    """a / b / c as a / (b/c), and a / b / c / d as (a/b) / (c/d)."""
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


def _join(values: list[Rational], operators: list[str]) -> None:
    for at in range(len(operators) - 1, -1, -1):
        if operators[at] == "j":
            values[at] = checked(values[at] * values.pop(at + 1))
            del operators[at]


def _fold(
    values: list[Rational], operators: list[str], reading: Reading, percent: list[bool]
) -> Rational:
    total: Rational = 0
    term, sign = values[0], 1
    relative = "relative" in reading and bool(percent)
    in_order = "in_order" in reading
    for at, operator in enumerate(operators):
        value = values[at + 1]
        if operator in "+-":
            term, total = 0 if in_order else value, total + sign * term
            sign = 1 if operator == "+" else -1
            if relative and percent[at + 1]:
                term = total * value
            elif in_order:
                term, total, sign = total + sign * value, 0, 1
        elif operator == "/":
            term = divide(term, value)
        else:
            term = checked(term * value)
    return checked(total + sign * term)
