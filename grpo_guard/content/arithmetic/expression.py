"""Expressions as flat runs of operands, and their exact value under a given reading.

Human notation is not always arithmetic: a percentage may be a fraction or a plain number, a
fraction behind a number its decimals or a factor, and ``3 + 4 x 2`` may have been typed into a
pocket calculator. Nothing may be rejected for that, so a run is evaluated under every reading that
its notation leaves open (`readings`), and is wrong only if it is wrong under all of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, NamedTuple

from grpo_guard.content.arithmetic.notation import Rational, magnitude

MAX_BITS: Final = 4096  # of a numerator or denominator: towers of exponents end here


class UndefinedError(ArithmeticError):
    """Division by zero, a power that is not rational, or a value that is absurdly large."""


class Reading(NamedTuple):
    """One way to understand a run; the defaults are the rules of arithmetic."""

    percent: str = "share"  # 20% is 0.2; "plain": 20; "relative": in a + 20%, a share of a
    scaled: bool = True  # "2 dozen" is 24
    mixed: bool = True  # "1 1/2" is 1.5, else a product
    tight: bool = False  # 6/2(3) divides by 6
    of_last: bool = False  # "half of 6 + 4" is 5
    in_order: bool = False  # 2 + 3 * 4 is 20
    signs_first: bool = False  # -2^2 is 4
    stacked: bool = False  # "2 / 1/4" is 8


DEFAULT: Final = Reading()


@dataclass(slots=True)
class Operand:
    """A number, or a group, with what was written around it.

    ``decimals`` is the number of decimal places; None for what is not a plain number. ``span`` is
    the place of the number itself, without sign, currency and unit.
    """

    span: tuple[int, int]
    value: Rational = 0
    decimals: int | None = None
    group: Run | None = None
    bottom: Run | None = None  # of a LaTeX fraction whose top is ``group``
    root: bool = False  # the square root of ``group``
    fraction: Fraction | None = None  # the 1/2 of 1 1/2
    negative: bool = False
    percent: bool = False
    scale: int = 1
    unit: str = ""


@dataclass(slots=True)
class Run:
    """``operands[0] operators[0] operands[1] ...``, with operators + - * / ^, j (implicit
    multiplication) and f ("of"). ``doubt`` says why its value cannot be relied on."""

    operands: list[Operand] = field(default_factory=list)
    operators: list[str] = field(default_factory=list)
    start: int = 0  # place in the text
    end: int = 0
    doubt: str = ""

    @property
    def is_number(self) -> bool:
        """Whether it is one plain number, such as a stated result."""
        return not self.operators and self.operands[0].decimals is not None

    def numbers(self) -> Iterator[Operand]:
        """All operands that are not groups, at any depth."""
        for operand in self.operands:
            if operand.group is None:
                yield operand
            else:
                yield from operand.group.numbers()
                if operand.bottom is not None:
                    yield from operand.bottom.numbers()

    def numbers_have_units(self, other: Run) -> bool:
        """Whether anything in the two runs is counted in units."""
        return any(o.unit for run in (self, other) for o in run.operands)

    def all_operators(self) -> Iterator[str]:
        """Operators at any depth."""
        yield from self.operators
        for operand in self.operands:
            if operand.group is not None:
                if operand.root:
                    yield "r"
                yield from operand.group.all_operators()
                if operand.bottom is not None:
                    yield "/"
                    yield from operand.bottom.all_operators()


def evaluate(run: Run, reading: Reading = DEFAULT) -> Rational:
    """Exact value of a run.

    Raises:
        UndefinedError: it has none, or one that is too large.
    """
    if len(run.operands) == 1:
        return _operand(run.operands[0], reading)
    values = [_operand(operand, reading) for operand in run.operands]
    operators = list(run.operators)
    if "^" in operators:
        _powers(run, values, operators, reading)
    if reading.tight and "j" in operators:
        _join(values, operators, "j")
    if reading.stacked:
        _stack(values, operators)
    if reading.of_last and "f" in operators:
        at = operators.index("f")
        if at == 0:
            return values[0] * _fold(values[1:], operators[1:], reading, run)
    return _fold(values, operators, reading, run)


def _operand(operand: Operand, reading: Reading) -> Rational:
    if operand.group is None:
        value = operand.value
        if operand.fraction is not None:
            value = value + operand.fraction if reading.mixed else value * operand.fraction
    else:
        value = evaluate(operand.group, reading)
        if operand.root:
            value = square_root(value)
        if operand.bottom is not None:
            value = divide(value, evaluate(operand.bottom, reading))
    if operand.percent and reading.percent != "plain":
        value = Fraction(value, 100)
    if operand.scale != 1 and reading.scaled:
        value *= operand.scale
    return -value if operand.negative else value


def _powers(run: Run, values: list[Rational], operators: list[str], reading: Reading) -> None:
    """Right to left; a sign in front of the base counts after the power, as in -2^2 = -4."""
    for at in range(len(operators) - 1, -1, -1):
        if operators[at] != "^":
            continue
        base, exponent = values[at], values.pop(at + 1)
        outside = run.operands[at].negative and not reading.signs_first
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


def _join(values: list[Rational], operators: list[str], which: str) -> None:
    for at in range(len(operators) - 1, -1, -1):
        if operators[at] == which:
            values[at] = checked(values[at] * values.pop(at + 1))
            del operators[at]


def _fold(values: list[Rational], operators: list[str], reading: Reading, run: Run) -> Rational:
    total: Rational = 0
    term, sign = values[0], 1
    relative = reading.percent == "relative" and len(values) == len(run.operands)
    for at, operator in enumerate(operators):
        value = values[at + 1]
        if operator in "+-":
            term, total = 0 if reading.in_order else value, total + sign * term
            sign = 1 if operator == "+" else -1
            if relative and run.operands[at + 1].percent:
                term = total * value
            elif reading.in_order:
                term, total, sign = total + sign * value, 0, 1
        elif operator == "/":
            term = divide(term, value)
        else:
            term = checked(term * value)
    return checked(total + sign * term)


def divide(top: Rational, bottom: Rational) -> Rational:
    """Exact quotient, an int where it is one.

    Raises:
        UndefinedError: division by zero.
    """
    if bottom == 0:
        raise UndefinedError("division by zero")
    value = Fraction(top) / bottom
    return checked(value.numerator if value.denominator == 1 else value)


def power(base: Rational, exponent: Rational) -> Rational:
    """Exact power with an integer exponent.

    Raises:
        UndefinedError: another exponent, 0 to a negative one, or a result of too many bits.
    """
    if exponent != int(exponent) or (base == 0 and exponent <= 0):
        raise UndefinedError("not a rational power")
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if magnitude(exponent) * bits > MAX_BITS:
        raise UndefinedError("too large")
    value = Fraction(base) ** int(exponent)
    return value.numerator if value.denominator == 1 else value


def square_root(value: Rational) -> Rational:
    """Exact square root.

    Raises:
        UndefinedError: it is not rational.
    """
    if value >= 0:
        top, bottom = math.isqrt(value.numerator), math.isqrt(value.denominator)
        if top * top == value.numerator and bottom * bottom == value.denominator:
            return divide(top, bottom)
    raise UndefinedError("not a rational root")


def checked(value: Rational) -> Rational:
    """The value, if it is of a sensible size.

    Raises:
        UndefinedError: it has more than `MAX_BITS` bits.
    """
    if value.numerator.bit_length() > MAX_BITS or value.denominator.bit_length() > MAX_BITS:
        raise UndefinedError("too large")
    return value


def proper(operand: Operand) -> Fraction | None:
    """The value of a fraction of two plain numbers below 1, as in the 1/2 of 2 1/2."""
    runs = (operand.group, operand.bottom)
    if any(run is not None and not run.is_number for run in runs):
        return None
    try:
        value = _operand(operand, DEFAULT)
    except UndefinedError:
        return None
    return Fraction(value) if 0 < value < 1 else None


def readings(*runs: Run) -> Iterator[Reading]:
    """The readings that the notation of these runs leaves open, apart from the default one.

    Each feature doubles their number (percentages: triple), so at most 384.
    """
    operands = [operand for run in runs for operand in run.numbers()]
    operands += [o for run in runs for o in run.operands if o.group is not None]
    operators = {sign for run in runs for sign in run.all_operators()}
    both, default = (True, False), (True,)
    percents = ("share", "plain", "relative") if any(o.percent for o in operands) else ("share",)
    choices = itertools.product(
        percents,
        both if any(o.scale != 1 for o in operands) else default,
        both if any(o.fraction is not None for o in operands) else default,
        (False, True) if "j" in operators and "/" in operators else (False,),
        (False, True) if "f" in operators and operators - {"f", "/"} else (False,),
        (False, True) if operators & set("+-") and operators & set("*/jf") else (False,),
        (False, True) if "^" in operators and any(o.negative for o in operands) else (False,),
        (False, True) if _has_stack(runs) else (False,),
    )
    next(choices)
    return itertools.starmap(Reading, choices)


def _has_stack(runs: tuple[Run, ...]) -> bool:
    groups = [o.group for run in runs for o in run.operands if o.group is not None]
    return any("//" in "".join(run.operators) for run in (*runs, *groups))
