"""Equations with one unknown and the solution that a text states: "x + 2 = 8, so x = 7"."""

import re
from fractions import Fraction
from typing import Final

from grpo_guard.content.arithmetic.another import Another
from grpo_guard.content.arithmetic.equation import Equation
from grpo_guard.content.arithmetic.notation import number

_NUMBER: Final = r"[0-9]{1,9}(?:\.[0-9]{1,6})?"
_THEN: Final = (
    r"(?:so|then|thus|hence|therefore|we get|gives|giving|means|which gives|which means|implies|"
    r"\n{1,2}[ $]{0,8}|and so|i\.e\.|→|\\implies|\\Rightarrow|\\to)"
)
_STATED: Final = re.compile(r"[a-z] ?= ?-?[0-9]")
_BEFORE: Final = re.compile(rf"{_THEN}[ ,$:]{{0,4}}\Z")
_LONGEST_BEFORE: Final = 24
# Anything else next to it, such as a second term, a power or a unit, makes the equation unreadable.
_SOLVED: Final = re.compile(
    rf"(?<![\w.^)}}\]/*+=<>|-])(?<![\^)}}\]/*+=<>|-] )(?P<factor>{_NUMBER})? ?[*]? ?(?P<x>[a-z])"
    rf"(?: ?(?P<sign>[-+]) ?(?P<term>{_NUMBER}))? ?= ?(?P<value>-?{_NUMBER})"
    rf"[ $.,;]{{0,4}}{_THEN}[ ,$:]{{0,4}}(?P<stated>(?P=x) ?= ?"
    rf"(?P<top>-?{_NUMBER})(?:/(?P<bottom>{_NUMBER}))?)(?![\w^%\\°]|\.[0-9]| ?[-+*/^=(!])"
)


def solutions(folded: str, another: Another) -> list[Equation]:
    """Return the stated solutions, right or wrong, of linear equations, in linear time.

    Args:
        folded: The folded text.
        another: The other arithmetics that the text and its question mention; a solution under one
            of their moduli is right.
    """
    stated = (match.start() for match in _STATED.finditer(folded))
    # In most texts no value follows from anything, and the whole pattern tries every letter.
    if not any(_BEFORE.search(folded, max(0, at - _LONGEST_BEFORE), at) for at in stated):
        return []
    found = (_checked(match, another) for match in _SOLVED.finditer(folded))
    return [equation for equation in found if equation is not None]


def _checked(match: re.Match[str], another: Another) -> Equation | None:
    if match["factor"] is None and match["term"] is None:
        return None  # "x = 2, then x = 3": two roots, or the steps of a program
    written = (match["factor"] or "1", match["term"] or "0", match["value"], match["top"])
    factor, term, value, top = map(_exact, written)
    bottom = _exact(match["bottom"] or "1")
    if factor is None or term is None or value is None or top is None or bottom is None:
        return None
    if not factor or not bottom:
        return None
    if match["sign"] == "-":
        term = -term
    exact, stated = (value - term) / factor, top / bottom
    unit = Fraction(1, 10 ** len(match["top"].partition(".")[2])) if "." in match["top"] else 0
    left_over = factor * stated + term - value
    right = abs(exact - stated) <= unit or any(left_over % m == 0 for m in another.moduli)
    extent = match.span()
    left = match.string[match.start() : match.start("stated")].strip()
    return Equation(left, exact, stated, match.span("top"), extent, right)


def _exact(written: str) -> Fraction | None:
    read = number(written.lstrip("-"))
    return None if read is None else Fraction(read[0]) * (-1 if written[0] == "-" else 1)
