"""Rounding: a stated value is right if the exact one rounds to it, up, down or to nearest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Final

from grpo_guard.content.arithmetic.expression import Operand, Run, UndefinedError, evaluate
from grpo_guard.content.arithmetic.notation import Rational, magnitude

FLOAT_DECIMALS: Final = 9  # more than that was printed by a floating-point calculator


def rounds_to(exact: Rational, stated: Rational, decimals: int) -> bool:
    """Whether ``stated`` is ``exact`` rounded up, down or to nearest at its number of decimals."""
    if exact == stated:
        return True
    gap = magnitude(exact - stated)
    if gap < Fraction(1, 10**decimals):
        return True
    return decimals >= FLOAT_DECIMALS and gap * 10**9 <= magnitude(exact)


def states(run: Run, exact: Rational, approximate: bool) -> bool:
    """Whether a run that is one number states ``exact``, as closely as its digits claim to."""
    if not run.is_number:
        return False
    operand = run.operands[0]
    stated = evaluate(run)
    plain = replace(operand, percent=False)
    return _close(operand, exact, stated, approximate) or (
        operand.percent and _close(plain, exact, evaluate(Run([plain])), approximate)
    )


def _close(operand: Operand, exact: Rational, stated: Rational, approximate: bool) -> bool:
    factor = Fraction(magnitude(stated), operand.value) if operand.value else Fraction(1)
    decimals = operand.decimals or 0
    if factor not in (0, 1):
        exact, stated = exact / factor, stated / factor
    if approximate and stated and not decimals and stated.denominator == 1:
        return magnitude(exact - stated) < _place_of(int(stated))
    return rounds_to(exact, stated, decimals)


def _place_of(value: int) -> int:
    """Value of the last digit that is not 0: 1,200 claims to be right to the hundred."""
    place = 1
    while value % (place * 10) == 0:
        place *= 10
    return place


def agrees(left: Run, right: Run, exact: Rational, stated: Rational, approximate: bool) -> bool:
    """Whether two sides with these values may be called equal."""
    if exact == stated:
        return True
    if right.is_number and _close(right.operands[0], exact, stated, approximate):
        return True
    both = left.is_number and right.is_number  # then the later one is the coarser
    return left.is_number and not both and _close(left.operands[0], stated, exact, approximate)


def holds_unrounded(
    left: Run, right: Run, rounded: Mapping[Rational, Rational], approximate: bool
) -> bool:
    """Whether the sides agree once rounded numbers stand for what they were rounded from."""
    changed = False
    runs = []
    for run in (left, right):
        operands = []
        for operand in run.operands:
            exact = rounded.get(operand.value) or _repeating(operand)
            if operand.group is None and exact is not None and run is left:
                operand = replace(operand, value=exact)
                changed = True
            operands.append(operand)
        runs.append(Run(operands, run.operators, run.start, run.end))
    if not changed:
        return False
    try:
        values = evaluate(runs[0]), evaluate(runs[1])
    except UndefinedError:
        return False
    return agrees(left, right, *values, approximate)


def _repeating(operand: Operand) -> Fraction | None:
    """The fraction of a small denominator behind 0.33, 16.67 or 0.143, if there is one."""
    if not operand.decimals or operand.decimals < 2:
        return None
    for bottom in (3, 6) if operand.decimals == 2 else (3, 6, 7, 9, 11, 12):
        exact = Fraction(round(operand.value * bottom), bottom)
        if magnitude(exact - operand.value) * 10**operand.decimals < 1 and exact != operand.value:
            return exact
    return None
