"""Reads sides from the tokens of one segment; linear, whatever their brackets."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Final

from grpo_guard.content.arithmetic.notation import CLOSE, NUMBER, OPEN, OUTSIDE, Token, number
from grpo_guard.content.arithmetic.numbers import Rational, UndefinedError
from grpo_guard.content.arithmetic.parse import ENDS, MAX_DEPTH, Parse
from grpo_guard.content.arithmetic.side import ARITHMETIC, Reading, Side, Unread, whole_number

_kind: Final = itemgetter(0)
_CLOSERS: Final = {"(": ")", "[": "]", "{": "}"}


class Reader:
    """Reads sides from the tokens of one segment.

    Attributes:
        tokens, count: All of them.
        kinds: One character for each token, and `OUTSIDE` a few places around them.
    """

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.count = len(tokens)
        # Indices from -6 to count + 5 have one, so that nobody has to ask whether a token is there.
        self.kinds = "".join(map(_kind, tokens)) + OUTSIDE * 6
        self.closing, self.enclosing = _matched(tokens) if OPEN in self.kinds else ({}, {})

    def side(self, at: int) -> Side:
        """The longest side that begins at token ``at``.

        Raises:
            Unread: none does.
        """
        token, end = self.tokens[at], self.count
        if token.kind == NUMBER and self.kinds[at + 1] in ENDS and token.text.isdigit():
            read = number(token.text)
            if read is not None:
                return whole_number(at, token, read[0])  # as most results are
        side = Side(at)
        try:
            side.value, side.end = self._parse(side, ARITHMETIC, {}).level(at, end, 0)
        except UndefinedError:
            side = Side(at)  # where it ends does not depend on its value
            _, side.end = self._parse(side, ARITHMETIC, {}, blind=True).level(at, end, 0)
        side.start, side.stop = token.start, self.tokens[side.end - 1].end
        return side

    def again(
        self, side: Side, reading: Reading, shift: Mapping[int, Rational] | None = None
    ) -> Rational | None:
        """The value of a side under another reading, or with some numbers shifted by so much."""
        reading = reading - ({"bullet"} - side.open)
        try:
            parse = self._parse(Side(side.at), reading, shift or {})
            value, end = parse.level(side.at, side.end, 0)
        except (Unread, UndefinedError):
            return None
        return value if end == side.end else None

    def _parse(
        self, side: Side, reading: Reading, shift: Mapping[int, Rational], blind: bool = False
    ) -> Parse:
        return Parse(self.tokens, self.kinds, self.closing, side, reading, shift, blind)


def _matched(tokens: list[Token]) -> tuple[dict[int, int], dict[int, int]]:
    """Closing bracket of each opening one, and the innermost opening one around each token.

    Brackets that are nested too deep have no closing one: finding that out anew at each would be
    quadratic.
    """
    closing: dict[int, int] = {}
    enclosing: dict[int, int] = {}
    stack: list[tuple[int, int]] = []  # place and height of what is inside
    for at, token in enumerate(tokens):
        if token.kind == OPEN:
            if stack:
                enclosing[at] = stack[-1][0]
            stack.append((at, 0))
            continue
        if token.kind == CLOSE and stack:
            opened, height = stack.pop()
            if _CLOSERS.get(tokens[opened].text) != token.text:
                stack.clear()
                continue
            if height < MAX_DEPTH:
                closing[opened] = at
            if stack:
                stack[-1] = (stack[-1][0], max(stack[-1][1], height + 1))
        if stack:
            enclosing[at] = stack[-1][0]
    return closing, enclosing
