"""What is right at a glance: calculator notes and lines in the commonest forms.

Says only where the full parser has to look. What is passed over here holds no wrong equation, and
nothing that the reading of another line depends on; a test holds it against the full parser.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Final, TypeAlias

from grpo_guard.content.arithmetic.notation import Rational
from grpo_guard.content.arithmetic.plain import (
    APART,
    BARE,
    BEHIND,
    LEFT,
    NUM,
    PLAIN_NOTE,
    SIDE,
    STATED,
    compared,
    confirmed,
    ends_with_sign,
    leads_in,
    leads_out,
    leaves_alone,
    states_nothing,
)
from grpo_guard.content.arithmetic.rounding import FLOAT_DECIMALS

Rounded: TypeAlias = Callable[[Rational, Rational, int], None]
"""Told of an exact value, what it was rounded to, and the number of decimals of this."""

# A whole number, as calculators write it too: 150.0
_INT: Final = r"(0|[1-9][0-9]{0,8}+)(?:\.0(?![0-9]))?+"
# The number behind a note repeats its result, or there is none.
_COPIED: Final = r"(?=(?P={0})(?:(?![0-9.,/])|[.,](?:[ \n]|\Z))|[ ]?[^ $0-9]|\Z)"
_NOTE: Final = re.compile(
    rf"<<(?:{_INT}([-+*/]){_INT}=(?P<whole>{_INT})>>{_COPIED.format('whole')}"
    rf"|({SIDE})=(?P<stated>-?{NUM})>>{_COPIED.format('stated')}|[^<>\n]{{0,300}}>>)"
)
_SUM: Final = rf"{_INT}(?:[ ]{{0,2}}([-+*/])[ ]{{0,2}}|[ ]x[ ])\$?{_INT}(?=[ ]{{0,2}}=)"
_LINE: Final = re.compile(rf"({BARE}){APART}({_SUM}|{LEFT}){STATED}({BARE})")
_ANYWHERE: Final = re.compile(rf"{APART}(?<![0-9]:)({_SUM}|{LEFT}){STATED}")
# Words that may change the number before them; "x" is looked for in the line itself, since it is
# a sign more often than a word.
CHANGING: Final = frozenset(word.encode() for word in BEHIND - {"x"})


def without_notes(folded: str, rounded: Rounded) -> tuple[str, list[tuple[int, int]]]:
    """A text with blanks for its notes, and the places of those that the full parser must read.

    The others are plainly right, with a number behind them that agrees.
    """
    pieces: list[str] = []
    unread: list[tuple[int, int]] = []
    done = 0
    for match in _NOTE.finditer(folded):
        start, end = match.span()
        pieces.append(folded[done:start])
        pieces.append(" " * (end - start))
        done = end
        first, sign, second, _, whole, left, stated = match.groups()
        if first is not None:
            settled = _agree(int(first), sign, int(second), int(whole))
        else:
            settled = left is not None and not unread and _is_near(left, stated, rounded)
        if not settled:
            unread.append((start, end))
    pieces.append(folded[done:])
    return "".join(pieces), unread


def is_plain_note(folded: str, start: int, end: int, rounded: Rounded) -> bool:
    """Whether the note, of which ``[start, end)`` is the place, is a plain equation and right."""
    match = PLAIN_NOTE.fullmatch(folded, start + 2, end - 2)
    return match is not None and _is_near(match[1], match[2], rounded)


def is_plain(
    text: str, folded: str, start: int, end: int, changing: bool, rounded: Rounded
) -> bool:
    """Whether a line states nothing, or plain equations that are right.

    Args:
        text: As written.
        folded: The same with plain signs, and blanks for calculator notes.
        start, end: The line.
        changing: Whether the text has any word of `CHANGING`.
        rounded: Called if the line is plain and its result a rounded one.
    """
    if folded.find("=", start, end) < 0:
        return False  # stated by a verb
    match = _LINE.fullmatch(folded, start, end)
    if match is not None:
        lead, left, first, sign, second, stated, tail = match.groups()
        bare = not (changing or "x" in tail or "  " in tail) or not tail or leaves_alone(tail)
        apart = bare and not ends_with_sign(lead)
    else:
        match = _ANYWHERE.search(folded, start, end)
        tagged = folded.startswith("<", start) or folded.endswith(">", start, end)
        if match is None and not tagged:
            return states_nothing(folded[start:end])
        if match is None or tagged or "=" in folded[match.end() : end]:
            return confirmed(text, folded, start, end) is not None
        left, first, sign, second, stated = match.groups()
        apart = leads_in(folded[start : match.start()]) and leads_out(folded[match.end() : end])
    if not apart:
        return False
    if first is None or not stated.removesuffix(".0").isdigit():
        return _is_near(left, stated, rounded)
    whole = int(stated.removesuffix(".0"))
    return _agree(int(first), sign or "*", int(second), whole) or _is_near(left, stated, rounded)


def _is_near(left: str, stated: str, rounded: Rounded) -> bool:
    """Whether the left side rounds to the right one, as the full parser sees it."""
    sides = compared(left, stated)
    if sides is None:
        return False
    exact, said, unit = sides
    if exact == said:
        return True
    decimals = len(stated.partition(".")[2])
    gap = abs(exact - said)
    if exact <= 0 or not decimals or exact < unit <= said:
        return False
    if gap * 10**decimals >= unit and (decimals < FLOAT_DECIMALS or gap * 10**9 > exact):
        return False
    rounded(Fraction(exact, unit), Fraction(said, unit), decimals)
    return True


def _agree(first: int, sign: str, second: int, stated: int) -> bool:
    if sign == "*":
        return first * second == stated
    if sign == "+":
        return first + second == stated
    if sign == "-":
        return first - second == stated
    return second != 0 and first == second * stated
