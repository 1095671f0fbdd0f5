"""Chains in a text: which run stands to the left and which to the right of each ``=``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from grpo_guard.content.arithmetic.expression import Operand, Run
from grpo_guard.content.arithmetic.notation import (
    APPROXIMATELY,
    ASIDE,
    BREAK,
    CLOSE,
    FRACTION,
    NUMBER,
    OF,
    OPEN,
    PERCENT,
    QUESTION,
    RELATION,
    ROOT,
    SIGN,
    UNKNOWN,
    VERB,
    VULGAR,
    WORDS,
    Token,
    number,
    scan,
    vocabulary,
)
from grpo_guard.content.arithmetic.parser import Parser
from grpo_guard.content.arithmetic.units import sizes_of

_STARTS: Final = frozenset({NUMBER, OPEN, FRACTION, VULGAR, ROOT})
_HEDGES: Final = vocabulary("about around roughly almost nearly")
_FILLERS: Final = _HEDGES | vocabulary(
    "altogether a an total of only just exactly or the us you me it him her them to also now"
)
# Words behind a stated number that make it part of another statement.
_COMPARING: Final = vocabulary(
    "more less fewer greater bigger larger smaller times higher lower out percent away short"
)


@dataclass(slots=True)
class Link:
    """Two sides of one ``=``.

    Attributes:
        left, right: The two runs.
        chained: The left side is the right side of an earlier ``=``.
        opens: It is the first of its chain whose two sides can be read.
        approximate: Stated as approximate.
        verbal: The relation is a verb.
        context: Tokens before the left side, nearest last (empty if chained).
        doubt: Why nothing may be concluded; empty if there is no reason.
        after: The token behind the right side.
    """

    left: Run
    right: Run
    chained: bool
    opens: bool
    approximate: bool
    verbal: bool
    context: list[Token]
    doubt: str
    after: Token | None


def links(text: str, start: int, end: int) -> Iterator[Link]:
    """All links of ``text[start:end]``, which must have been folded, in order; linear time."""
    tokens = scan(text, start, end)
    if not any(token.kind == RELATION for token in tokens):
        return
    yield from _Chains(tokens).links()


class _Chains:
    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.parser = Parser(tokens)
        self.left: Run | None = None
        self.left_at = 0  # token at which ``left`` begins
        self.left_end = -1
        self.chained = False
        self.opens = True

    def links(self) -> Iterator[Link]:
        at, count = 0, len(self.tokens)
        while at < count:
            kind = self.tokens[at].kind
            if kind == RELATION:
                aside = self.tokens[at].text == ASIDE
                link, at = self._aside(at) if aside else self._relation(at)
                if link is not None:
                    yield link
            elif kind in _STARTS or self._is_leading_sign(at):
                run, stop = self.parser.run(at)
                if run is not None:
                    self.left, self.left_at, self.left_end = run, at, stop
                    self.chained = False
                at = max(stop if run is not None else at + 1, at + 1)
            else:
                at += 1

    def _is_leading_sign(self, at: int) -> bool:
        token = self.tokens[at]
        if token.kind != SIGN or token.text not in "+-" or self.parser.kind(at + 1) not in _STARTS:
            return False
        return at == 0 or self.tokens[at - 1].kind in (BREAK, OPEN, RELATION, QUESTION)

    def _relation(self, at: int) -> tuple[Link | None, int]:
        """Read the right side; it is the left side of what may follow."""
        token = self.tokens[at]
        left = self.left if self.left_end == at else None
        context = [] if self.chained else self.tokens[max(0, self.left_at - 4) : self.left_at]
        chained = self.chained
        doubt = "" if chained or left is None else self._doubt_before()
        begin, approximate = self._skip_fillers(at + 1)
        left_at = self.left_at
        run, stop = self.parser.run(begin) if begin < len(self.tokens) else (None, begin)
        if run is None and left is not None and left.operators:
            run, stop = self._padded(begin, stop)
        self.left, self.left_at, self.left_end, self.chained = run, begin, stop, True
        opens = self.opens or not chained
        self.opens = run is None or left is None
        if run is None:
            if left is not None and not chained and self._is_name(at + 1):
                # "2 + 2 = x = 4": the name stands for the value
                self.left, self.left_at, self.left_end = left, left_at, at + 2
                self.chained, self.opens = False, True
                return None, at + 2
            self.left_end = -1
            return None, max(at + 1, begin)
        if left is None:
            return None, stop
        after = self.tokens[stop] if stop < len(self.tokens) else None
        verbal = token.text == VERB
        doubt = doubt or left.doubt or run.doubt or self._doubt_behind(stop, verbal)
        approximate = approximate or token.text == APPROXIMATELY
        return Link(left, run, chained, opens, approximate, verbal, context, doubt, after), stop

    def _padded(self, at: int, stop: int) -> tuple[Run | None, int]:
        """A result with zeros in front, ``= 05``; elsewhere such digits are times and codes."""
        if self.parser.kind(at) != NUMBER or self.parser.kind(at + 1) not in ("", BREAK, WORDS):
            return None, stop
        token = self.tokens[at]
        padded = token.text[0] == "0" and token.text.isdigit()
        read = number(token.text.lstrip("0") or "0") if padded else None
        if read is None:
            return None, stop
        operand = Operand((token.start, token.end), *read)
        return Run([operand], start=token.start, end=token.end), at + 1

    def _is_name(self, at: int) -> bool:
        """One word, or letter, between two signs of equality."""
        if self.parser.kind(at) not in (WORDS, SIGN) or self.parser.kind(at + 1) != RELATION:
            return False
        return self.tokens[at].text.isalpha() and self.tokens[at + 1].text == "="

    def _aside(self, at: int) -> tuple[Link | None, int]:
        """``6 + 7, which is 13``, ``6 + 7 → 13``: only a bare calculation and a bare number.

        Behind anything else an arrow joins statements and "which is" a remark.
        """
        left, joined = self.left, self.left_end == at and (self.opens or not self.chained)
        self.left, self.left_end = None, -1
        if left is None or not joined or not left.operators:
            return None, at + 1
        begin, approximate = self._skip_fillers(at + 1)
        if self.parser.kind(begin) != NUMBER:
            return None, at + 1
        run, stop = self.parser.run(begin)
        if run is None or not run.is_number or self.parser.kind(stop) in (RELATION, SIGN, OF):
            return None, at + 1
        context = self.tokens[max(0, self.left_at - 4) : self.left_at]
        doubt = "" if self.chained else self._doubt_before()
        doubt = doubt or left.doubt or run.doubt or self._doubt_behind(stop, True)
        after = self.tokens[stop] if stop < len(self.tokens) else None
        return Link(left, run, False, True, approximate, True, context, doubt, after), stop

    def _skip_fillers(self, at: int) -> tuple[int, bool]:
        """Past "a total of", "about" and the like, at most four tokens; whether they hedge."""
        approximate = False
        for _ in range(4):
            kind = self.parser.kind(at)
            if kind == RELATION and self.tokens[at].text == APPROXIMATELY:
                approximate = True
            elif kind == WORDS:
                words = self.tokens[at].text.lower().split()
                if not _FILLERS.issuperset(words[:4]) or len(words) > 4:
                    break
                approximate |= not _HEDGES.isdisjoint(words)
            elif kind != OF:
                break
            at += 1
        return at, approximate

    def _doubt_behind(self, at: int, verbal: bool) -> str:
        if at >= len(self.tokens):
            return ""
        token, before = self.tokens[at], self.tokens[at - 1]
        touches = token.start == before.end
        if token.kind == QUESTION:
            return "a question"
        if token.kind == UNKNOWN and (token.text.isalpha() or (touches and token.text in "_^'")):
            return "an unknown sign behind it"
        if self._goes_on_in_smaller_units(at):
            return "a second measure"
        if token.kind in (NUMBER, VULGAR, PERCENT):
            return "another number behind it" if touches or token.kind != NUMBER else ""
        if token.kind == OPEN and self.parser.kind(at + 1) == WORDS:
            said = self.tokens[at + 1].text.lower()
            return "a modulus" if said.startswith(("mod", "xor")) else ""
        if token.kind == BREAK and touches and at + 1 < len(self.tokens):
            following = self.tokens[at + 1]
            if following.kind == NUMBER and following.start == token.end:
                return "a time, a ratio or a list"
        if verbal and token.kind == WORDS and token.text.split()[0].lower() in _COMPARING:
            return "a comparison"
        return "an operator behind it" if verbal and token.kind == SIGN else ""

    def _goes_on_in_smaller_units(self, at: int) -> bool:
        """``= 2 hours (and) 30 minutes``."""
        at += self.tokens[at].kind == WORDS and self.tokens[at].text == "and"
        if self.left is None or self.parser.kind(at) != NUMBER or self.parser.kind(at + 1) != WORDS:
            return False
        first = self.left.operands[-1].unit.rpartition(" ")[2]
        second = self.tokens[at + 1].text[:40].partition(" ")[0]
        ahead = {dimension for dimension, _ in sizes_of(first)}
        return any(dimension in ahead for dimension, _ in sizes_of(second))

    def _doubt_before(self) -> str:
        """What stands to the left of a chain that would change the value of its first side."""
        at = self.left_at
        if at == 0:
            return ""
        before, first = self.tokens[at - 1], self.tokens[at]
        touches = before.end == first.start
        kind = before.kind
        if kind == SIGN:
            opens_line = at == 1 or (
                self.tokens[at - 2].kind == BREAK
                and (
                    self.tokens[at - 2].start < before.start - 1
                    or self.tokens[at - 2].end == before.start
                )
            )
            bullet = opens_line and before.text in "-*+" and not touches
            return "" if bullet or (before.text == "*" and at == 1) else "an unreadable operand"
        if kind == ROOT:
            return "an unreadable root before it"
        if kind == UNKNOWN and (before.text.isalpha() or touches):
            return "an unknown sign before it"
        if kind in (NUMBER, PERCENT, VULGAR) or (kind == CLOSE and touches):
            return "another number before it"
        if kind == WORDS and touches:
            return "a function or an identifier"
        if at < 2 or kind not in (BREAK, OPEN):
            return ""
        earlier = self.tokens[at - 2]
        if kind == OPEN or earlier.kind == SIGN:
            known = (WORDS, BREAK, RELATION, OPEN)
            return "" if earlier.kind in known else "an open bracket before it"
        if earlier.kind == NUMBER and earlier.end == before.start:
            group = first.kind == NUMBER and len(first.text) == 3  # "14, 400 / 80"
            return "a time, a ratio or a list" if touches or group else ""
        return ""
