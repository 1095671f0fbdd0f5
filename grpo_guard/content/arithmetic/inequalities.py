"""Inequalities between numbers that do not hold: ``2 + 2 > 4``.

A simple reader, since what it finds is reported and rejects nothing by itself: plain numbers, the
four operations by their rules, no brackets, units or percentages. What it cannot read it passes.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Final, NamedTuple

MOST: Final = 20
_NUMBER: Final = r"\$?[0-9]{1,12}(?:\.[0-9]{1,6})?"
_SIDE: Final = rf"{_NUMBER}(?:[ ]?[-+*/x×÷][ ]?{_NUMBER}){{0,4}}"
# The sign comes first: a search for one character of a few goes through a text at once.
_SIGN: Final = re.compile(
    r"([<>≤≥](?:(?<=[<>])=)?+)(?:(?<=[0-9].)|(?<=[0-9][ ].)|(?<=[0-9].=)|(?<=[0-9][ ].=))"
    r"[ ]?(?=\$?[0-9])"
)
_LEFT: Final = re.compile(rf"(?<![\w.,/*+×÷=$-])(?<![=+*/x×÷-][ ]){_SIDE}\Z")
_RIGHT: Final = re.compile(rf"{_SIDE}(?![\w%])(?![.,][0-9])(?![ ]?[-+*/×÷(^][ ]?[\w$(])")
_PARTS: Final = re.compile(r"([-+*/x×÷])")
_WINDOW: Final = 100
_HOLDS: Final[dict[str, Callable[[Fraction, Fraction], bool]]] = {
    "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge,
    "≤": operator.le, "≥": operator.ge,
}  # fmt: skip


class Inequality(NamedTuple):
    """One that does not hold: both values, and its place."""

    left: Fraction
    right: Fraction
    span: tuple[int, int]


def wrong_inequalities(text: str) -> Iterator[Inequality]:
    """Inequalities of ``text`` that are false, at most `MOST`; linear in its length."""
    found = 0
    for sign in _SIGN.finditer(text):
        stop = sign.start() - (text[sign.start() - 1] == " ")
        left = _LEFT.search(text, max(0, stop - _WINDOW), stop)
        right = _RIGHT.match(text, sign.end())
        if left is None or right is None:
            continue
        values = _value(left[0]), _value(right[0])
        if values[0] is None or values[1] is None or _HOLDS[sign[1]](values[0], values[1]):
            continue
        yield Inequality(values[0], values[1], (left.start(), right.end()))
        found += 1
        if found >= MOST:
            return


def _value(side: str) -> Fraction | None:
    """By the rules: products first; None where something is divided by zero."""
    parts = _PARTS.split(side.replace("$", "").replace(" ", ""))
    sums = [Fraction(parts[0])]
    for sign, written in zip(parts[1::2], parts[2::2], strict=True):
        number = Fraction(written)
        if sign in "*x×":
            sums[-1] *= number
        elif sign in "/÷":
            if not number:
                return None
            sums[-1] /= number
        else:
            sums.append(-number if sign == "-" else number)
    return sum(sums, Fraction(0))
