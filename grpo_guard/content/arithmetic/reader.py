"""Read the sides of equations from tokens, in linear time even with nested brackets."""

from collections.abc import Mapping
from operator import itemgetter
from typing import Final

from grpo_guard.content.arithmetic.notation import CLOSE, NUMBER, OPEN, OUTSIDE, Token, number
from grpo_guard.content.arithmetic.numbers import Rational
from grpo_guard.content.arithmetic.parse import ENDS, MAX_DEPTH, Parse
from grpo_guard.content.arithmetic.side import ARITHMETIC, Reading, Side, Unread, whole_number

_kind: Final = itemgetter(0)
_CLOSERS: Final = {"(": ")", "[": "]", "{": "}"}


class Reader:
    """Reads the sides of equations from the tokens of one segment.

    Attributes:
        tokens, count: All tokens, and how many there are.
        kinds: The kind of each token, as a single character, padded with `OUTSIDE`.
    """

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.count = len(tokens)
        # Valid for indices -6 to count + 5, so that callers need no bounds checks.
        self.kinds = "".join(map(_kind, tokens)) + OUTSIDE * 6
        self.closing, self.enclosing = _matched(tokens) if OPEN in self.kinds else ({}, {})

    def side(self, at: int) -> Side | None:
        """Return the longest side that begins at token ``at``, or None if no side does."""
        token, end = self.tokens[at], self.count
        if token.kind == NUMBER and self.kinds[at + 1] in ENDS and token.text.isdigit():
            read = number(token.text)
            if read is not None:
                return whole_number(at, token, read[0])  # shortcut for most results
        side = Side(at)
        parse = self._parse(side, ARITHMETIC, {})
        try:
            value, side.end = parse.level(at, end, 0)
        except Unread:
            return None
        side.value = None if parse.undefined else value
        side.start, side.stop = token.start, self.tokens[side.end - 1].end
        return side

    def again(
        self, side: Side, reading: Reading, shift: Mapping[int, Rational] | None = None
    ) -> Rational | None:
        """Return the value of a side under another reading, or None if it cannot be read that way.

        Args:
            side: The side to read again.
            reading: The alternatives to choose where notation is ambiguous.
            shift: Amounts to add to numbers, by token index.
        """
        reading = reading - ({"bullet"} - side.open)
        parse = self._parse(Side(side.at), reading, shift or {})
        try:
            value, end = parse.level(side.at, side.end, 0)
        except Unread:
            return None
        return None if parse.undefined or end != side.end else value

    def _parse(self, side: Side, reading: Reading, shift: Mapping[int, Rational]) -> Parse:
        return Parse(self.tokens, self.kinds, self.closing, side, reading, shift)


def _matched(tokens: list[Token]) -> tuple[dict[int, int], dict[int, int]]:
    """Return each opening bracket's closing bracket, and each token's innermost opening bracket.

    Brackets that are nested too deeply get no closing bracket here. Otherwise each of them would be
    parsed again down to the depth limit, in quadratic time.
    """
    closing: dict[int, int] = {}
    enclosing: dict[int, int] = {}
    stack: list[tuple[int, int]] = []  # index, and height of the content
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
