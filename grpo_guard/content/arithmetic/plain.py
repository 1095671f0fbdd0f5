"""Settle lines of plain prose whose equations are all true, in one scan by a regular expression.

Most lines with an equation consist of words, numbers and something like ``16 - 3 = 13``. If every
equation in such a line is exactly true, only the values matter, because nothing next to a true
equation can make it wrong. Such lines need neither tokens nor other readings. A line with anything
else (another sign, an operator in words, a bracket before a number, an equation that is not exactly
true) is left to the full parser.
"""

import re
from functools import lru_cache, partial
from itertools import pairwise
from typing import Final, NamedTuple

from grpo_guard.content.arithmetic.notation import KEY_STARTS, number
from grpo_guard.content.arithmetic.numbers import Rational, UndefinedError, divide
from grpo_guard.content.arithmetic.units import SCALES, is_plain, unit_words

_LONGEST: Final = 20  # characters per number, so that products of a few numbers stay small
_MOST_OPERATORS: Final = 12
_DIGITS: Final = rf"(?:[0-9](?:[0-9]|[.,](?=[0-9])){{0,{_LONGEST - 1}}}+|\.[0-9]{{1,{_LONGEST}}}+)"
_NUMBER: Final = rf"{_DIGITS}(?![0-9])(?![.,][0-9])"
# Before a number, these words are operators, and so is "of", except in "total of".
_OPERATORS: Final = ("times", "plus", "minus", "by", "x")
_BEGIN: Final = (
    r"(?<![\w.,)\"-])(?<![\w.,)\"-]\$)(?<![0-9][ ])(?<![0-9][ ]\$)"
    + "".join(rf"(?<!(?i:{word})[ ])(?<!(?i:{word})[ ]\$)" for word in _OPERATORS)
    + r"(?:(?<!(?i:of)[ ])(?<!(?i:of)[ ]\$)|(?<=total[ ]of[ ])|(?<=total[ ]of[ ]\$))"
)
_UNIT: Final = r"[ ][a-z]{2,20}+(?:[ ][a-z]{1,20}+){0,4}+"
_OPERAND: Final = rf"\$?{_NUMBER}(?:{_UNIT}(?=[ ]?[-+*/=]))?+"
_SIDE: Final = (
    rf"{_OPERAND}(?:[ ]?[-+*/][ ]?{_OPERAND}|[ ][xX][ ]{_OPERAND}){{0,{_MOST_OPERATORS}}}+"
)
# A name, a bracket, a sign or another number after a number could belong to it.
_BEHIND: Final = r"(?![ ]?[A-Z0-9(!%])(?![ ]?\$)(?!\.\.)(?![a-z'\"])"
# Prose has single spaces and no signs. Anything that does not match is left to the full parser.
_PLACE: Final = re.compile(
    rf"""
    (?:[A-Za-z,;:?"]++|[ ](?![ ])|\.(?![.0-9])|'(?<=[A-Za-z]')|-(?<=[a-z]-)(?=[a-z])
      |\$(?=[0-9])|!(?<=[A-Za-z]!)|\((?=[A-Za-z])|\)(?![ ]?(?:[(0-9]|of)))*+
    (?:{_BEGIN}(?:
        (?P<sides>{_SIDE}(?:[ ]?=[ $]{{0,400}}+{_SIDE})++){_BEHIND}
        (?:[ ](?P<unit>[a-z]++)(?![\w'-]))?+
      | \$?{_NUMBER}{_BEHIND}
    )|\Z)
    """,
    re.VERBOSE | re.ASCII,
)
_BLANKS: Final = re.compile("[ ]*+")
_PIECE: Final = re.compile(rf"{_DIGITS}|[-+*/]|[xX](?=[ ])|[a-z]{{2,}}+(?:[ ][a-z]++)*+")


class Plain(NamedTuple):
    """A true equation: its value, and the spans of the left side and of the stated result."""

    value: Rational
    left: tuple[int, int]
    stated: tuple[int, int]


class _Side(NamedTuple):
    value: Rational
    operators: str
    counted: bool  # whether the side has a unit
    span: tuple[int, int]


# These bypass the constructors of the two classes, as for tokens.
_plain: Final = partial(tuple.__new__, Plain)
_read: Final = partial(tuple.__new__, _Side)


def settled(text: str, start: int, end: int) -> list[Plain] | None:
    """Return the equations in ``text[start:end]`` if all are plain and true; None if unknown.

    These are the equations that `chains.links` would find there. Takes linear time.

    Args:
        text: The folded text.
        start, end: Span of a line or of a calculator note in the text.
    """
    if "ercent" in (line := text[start:end]) or "pprox" in line:
        return None
    found: list[Plain] = []
    at = _BLANKS.match(text, start, end).end()  # type: ignore[union-attr]
    while at < end:
        place = _PLACE.match(text, at, end)
        if place is None:
            return None
        at = place.end()
        if place["sides"] is not None and not _add(found, text, place):
            return None
    return found


def _add(found: list[Plain], text: str, place: re.Match[str]) -> bool:
    """Add the equations of one chain; return whether they are all statements and true."""
    unit, chain, at = place["unit"], place["sides"], place.start("sides")
    if unit is not None and (len(unit) < 2 or unit in SCALES or not is_plain(unit)):
        return False
    sides: list[_Side] = []
    for written in chain.split("="):
        stripped = written.strip(" $")
        read = _evaluated(stripped)
        if read is None or (sides and read[0] != sides[0].value):
            return False
        start = at + written.index(stripped)
        sides.append(_read((*read, (start, start + len(stripped)))))
        at += len(written) + 1
    last = sides[-1]
    if last.operators or last.counted or not sides[0].operators:
        return False
    for i, (left, right) in enumerate(pairwise(sides)):
        operators = left.operators
        measured = left.counted or right.counted or (right is last and unit is not None)
        if measured and not operators:
            return False  # "= 12 months = 1 year"
        ranged = operators == "-" and i == 0 and left.value < 0
        if (ranged or operators == "//") and " " not in text[slice(*left.span)]:
            return False  # a range, a date
        if operators[:1] == "/" and text.endswith("and ", 0, left.span[0]):
            return False  # "3 and 1/2"
        found.append(_plain((left.value, left.span, right.span)))
    return True


# Cached, because a sum recurs in a calculator note, next to the note, and in other answers.
@lru_cache(maxsize=4096)
def _evaluated(written: str) -> tuple[Rational, str, bool] | None:
    """Return a side's value, its operators and whether it has a unit; None if not this simple."""
    if written.isdigit():  # most right sides
        value = _value(written)
        return None if value is None else (value, "", False)
    total: Rational = 0
    term: Rational = 0
    operators, sign, counted = "", "", False
    for piece in _PIECE.findall(written):
        if piece[-1].isdigit():
            value = _value(piece)
            if value is None:
                return None
            if sign == "*":
                term *= value
            elif sign == "/":
                try:
                    term = divide(term, value)
                except UndefinedError:
                    return None
            else:
                total += term
                term = -value if sign == "-" else value
        elif len(piece) == 1:
            sign = "*" if piece in "xX" else piece
            operators += sign
        elif _is_unit(piece):
            counted = True
        else:
            return None
    return total + term, operators, counted


def _value(written: str) -> Rational | None:
    """Return the value of a short number, or None if the number is ambiguous."""
    if written.isdigit() and written[0] != "0":
        return int(written)
    read = number(written)
    return None if read is None else read[0]


@lru_cache(maxsize=4096)
def _is_unit(words: str) -> bool:
    """Whether the words after a number are a unit that leaves its value unchanged."""
    each = words.split()
    if not KEY_STARTS.isdisjoint(each) or each[0] in SCALES or not is_plain(each[0]):
        return False
    return unit_words(words) is not None
