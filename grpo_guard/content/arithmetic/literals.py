"""Parse numbers as people write them: decimal commas, grouped thousands, mixed numbers."""

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from grpo_guard.content.arithmetic import notation as t
from grpo_guard.content.arithmetic.characters import vulgar
from grpo_guard.content.arithmetic.notation import Token, number
from grpo_guard.content.arithmetic.numbers import Rational
from grpo_guard.content.arithmetic.side import Unread

_DECIMAL_COMMA: Final = re.compile(r"(?:[0-9]{1,9}|[0-9]{1,3}(?:\.[0-9]{3}){1,6}),[0-9]{1,9}")
_GROUPING_DOT: Final = re.compile(r"[0-9]{1,3}(?:\.[0-9]{3})+")


def literal(text: str, comma: bool) -> tuple[Rational, int, bool]:
    """Return a number's value, its number of decimals, and whether ``comma`` can affect the value.

    Args:
        text: The text of a NUMBER token.
        comma: Whether to read ``1,5`` as 1.5 and ``1.200`` as 1200.

    Raises:
        Unread: the text is a version, a time, or too long.
    """
    decimal = "," in text and _DECIMAL_COMMA.fullmatch(text)
    grouped = _GROUPING_DOT.fullmatch(text)
    if grouped and comma:
        return int(text.replace(".", "")), 0, True
    read = number(text)
    if decimal and (comma or read is None):
        places = len(text) - text.index(",") - 1
        digits = int(text.replace(",", "").replace(".", ""))
        return Fraction(digits, 10**places), places, True
    if read is None:
        raise Unread
    return *read, bool(decimal or grouped)


def as_written(text: str) -> tuple[Rational, int] | None:
    """Return the value and decimals of a NUMBER token's text, or None if it cannot be read.

    Commas are decimal commas only if nothing else is possible, as in ``0,67``.
    """
    try:
        return literal(text, comma=False)[:2]
    except Unread:
        return None


def is_next_thousand(tokens: Sequence[Token], at: int) -> bool:
    """Whether the token at ``at`` adds a group of three digits to a number, as in ``12 000``.

    Compounds do not count: "12 200-kilobyte videos" are twelve videos.
    """
    token, before = tokens[at], tokens[at - 1]
    if token.kind != t.NUMBER or len(token.text) != 3 or token.start != before.end + 1:
        return False
    behind = tokens[at + 1] if at + 1 < len(tokens) else token
    compound = behind.kind == t.WORDS and behind.text[0] == "-"
    return len(before.text) <= 3 and token.text.isdigit() and not compound


def part_behind(tokens: Sequence[Token], at: int, end: int) -> tuple[Fraction | None, int]:
    """Parse a fraction below 1 after a whole number (``1 1/2``, ``1½``); return (fraction, end)."""
    if tokens[at].kind == t.VULGAR:
        return vulgar(tokens[at].text), at + 1
    if tokens[at].kind == t.FRACTION:
        return proper(tokens, at, end)
    if tokens[at].kind == t.NUMBER:
        return _slashed(tokens, at, end)
    if tokens[at][:2] == (t.WORDS, "and"):
        return _slashed(tokens, at + 1, end)
    return None, at


def _slashed(tokens: Sequence[Token], at: int, end: int) -> tuple[Fraction | None, int]:
    if at + 2 >= end or tokens[at + 1][:2] != (t.SIGN, "/"):
        return None, at
    return _ratio(tokens[at], tokens[at + 2]), at + 3


def proper(tokens: Sequence[Token], at: int, end: int) -> tuple[Fraction | None, int]:
    r"""Parse a plain fraction below 1, ``\frac{1}{2}`` or ``\frac12``; return (fraction, end)."""
    behind = tokens[at + 1 : min(at + 7, end)]
    if [token.kind for token in behind] == [t.OPEN, t.NUMBER, t.CLOSE, t.OPEN, t.NUMBER, t.CLOSE]:
        return _ratio(behind[1], behind[4]), at + 7
    if behind and behind[0].kind == t.NUMBER and re.fullmatch("[0-9]{2}", behind[0].text):
        top, bottom = int(behind[0].text[0]), int(behind[0].text[1])
        return (Fraction(top, bottom) if 0 < top < bottom else None), at + 2
    return None, at


def _ratio(over: Token, under: Token) -> Fraction | None:
    if over.kind != t.NUMBER or under.kind != t.NUMBER:
        return None
    top, bottom = number(over.text), number(under.text)
    if top is None or bottom is None or top[1] or bottom[1]:
        return None
    return Fraction(int(top[0]), int(bottom[0])) if 0 < top[0] < bottom[0] < 1000 else None
