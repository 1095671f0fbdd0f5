"""From tokens to runs: one pass, bounded depth, and doubt instead of guesses."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

from grpo_guard.content.arithmetic.characters import vulgar
from grpo_guard.content.arithmetic.expression import Operand, Run, proper
from grpo_guard.content.arithmetic.notation import (
    CLOSE,
    FRACTION,
    LETTER_X,
    NUMBER,
    OF,
    OPEN,
    PERCENT,
    RELATION,
    ROOT,
    SIGN,
    TIMES,
    VULGAR,
    WORDS,
    Token,
    number,
)
from grpo_guard.content.arithmetic.units import ATTACHED, is_remark, is_unit, sizes_of, spoils

MAX_DEPTH: Final = 24

_CLOSERS: Final = {"(": ")", "[": "]", "{": "}"}


class Parser:
    """Reads runs from a list of tokens."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.closing = _matched(tokens)
        self.count = len(tokens)
        self._improper: set[tuple[int, int, int]] = set()

    def kind(self, at: int) -> str:
        """Kind of a token, "" past the end."""
        return self.tokens[at].kind if at < self.count else ""

    def run(self, at: int, end: int | None = None, depth: int = 0) -> tuple[Run | None, int]:
        """The longest run that starts at token ``at`` and where it stops; None if none does."""
        end = self.count if end is None else end
        first, at = self._operand(at, end, depth)
        if first is None:
            return None, at
        run = Run([first], start=first.span[0], end=self.tokens[at - 1].end)
        while at < end:
            sign, after = self._sign(run, at)
            if not sign:
                break
            operand, stop = self._operand(after, end, depth)
            if operand is None or self._is_strange(run, sign, after):
                if sign != "f" and not self._is_separator(at):
                    run.doubt = "an operator without a number behind it"
                break
            run.operators.append(sign)
            run.operands.append(operand)
            at = stop
            run.end = self.tokens[at - 1].end
        return run, at

    def _sign(self, run: Run, at: int) -> tuple[str, int]:
        """The operator at ``at``, and where its right operand begins."""
        token = self.tokens[at]
        last = run.operands[-1]
        if token.kind == SIGN:
            return ("*" if token.text in (LETTER_X, TIMES) else token.text), at + 1
        if token.kind == OF and not last.unit:
            fraction = run.operators[-1:] == ["/"] or last.bottom is not None
            if last.percent or fraction or last.fraction is not None:
                known = self.kind(at + 1) == WORDS and self.tokens[at + 1].text.lower() in (
                    "the",
                    "those",
                    "these",
                )
                return "f", at + 1 + known
            return "", at
        touches = token.start == self.tokens[at - 1].end
        opened = token.kind == OPEN and token.text != "{"
        if opened and touches and not last.unit:
            return "j", at
        if token.kind in (FRACTION, ROOT) and last.group is None and not last.unit:
            return "j", at
        return "", at

    def _is_strange(self, run: Run, sign: str, at: int) -> bool:
        """``4 W^2``, ``2x + 3`` with a letter x, ``* + 1``: not what it looks like."""
        before = self.tokens[at - 1]
        letter = before.kind == SIGN and before.text == LETTER_X and self.kind(at) == SIGN
        plus = sign != "+" and self.kind(at) == SIGN and self.tokens[at].text == "+"
        return letter or plus or (sign == "^" and bool(run.operands[-1].unit))

    def _is_separator(self, at: int) -> bool:
        """A dash between clauses, or the asterisk that ends Markdown's emphasis."""
        token = self.tokens[at]
        if token.text == TIMES:
            return True
        spaced = token.start > self.tokens[at - 1].end
        if token.text == "-":
            return (
                spaced
                and self.kind(at + 1) in (WORDS, "", ";")
                and (at + 1 >= self.count or self.tokens[at + 1].start > token.end)
            )
        return token.text == "*" and not spaced and self.kind(at + 1) in (WORDS, "", ";", CLOSE)

    def _operand(self, at: int, end: int, depth: int) -> tuple[Operand | None, int]:
        negative = False
        signs = 0
        while at < end and self.tokens[at].kind == SIGN and self.tokens[at].text in "+-":
            negative ^= self.tokens[at].text == "-"
            at += 1
            signs += 1
            if signs > 2:
                return None, at
        if at >= end:
            return None, at
        kind = self.tokens[at].kind
        if kind == NUMBER:
            operand, after = self._number(at, end, depth)
        elif kind == OPEN and depth < MAX_DEPTH:
            operand, after = self._group(at, end, depth)
        elif kind == FRACTION and depth < MAX_DEPTH:
            operand, after = self._fraction(at, end, depth)
        elif kind == ROOT and depth < MAX_DEPTH:
            operand, after = self._root(at, end, depth)
        elif kind == VULGAR:
            token = self.tokens[at]
            value = vulgar(token.text)
            operand = Operand((token.start, token.end), value or 0) if value is not None else None
            after = at + 1
        else:
            return None, at
        if operand is None:
            return None, max(after, at + 1)
        operand.negative = negative
        return self._suffix(operand, after, end)

    def _number(self, at: int, end: int, depth: int) -> tuple[Operand | None, int]:
        token = self.tokens[at]
        read = number(token.text)
        if read is None:
            return None, at + 1
        operand = Operand((token.start, token.end), read[0], read[1])
        at += 1
        while at < end and read[1] == 0 and self._is_next_thousand(at):
            operand.value = operand.value * 1000 + int(self.tokens[at].text)
            operand.span = (operand.span[0], self.tokens[at].end)
            at += 1
        if at < end and read[1] == 0:
            at = self._mixed(operand, at, end, depth)
        return operand, at

    def _is_next_thousand(self, at: int) -> bool:
        """``12 000``: three digits, one space behind at most three."""
        token, before = self.tokens[at], self.tokens[at - 1]
        digits = token.kind == NUMBER and len(token.text) == 3 and token.text.isdigit()
        return digits and token.start == before.end + 1 and len(before.text) <= 3

    def _mixed(self, operand: Operand, at: int, end: int, depth: int) -> int:
        """``1 1/2`` and ``1½``: a whole number and a proper fraction behind it."""
        if self.tokens[at].kind == VULGAR:
            operand.fraction = vulgar(self.tokens[at].text)
        elif self.tokens[at].kind == FRACTION and depth < MAX_DEPTH:
            # Each is read once: reading what is not a mixed number a second time, as a factor,
            # would double the work with every fraction inside it.
            if (at, end, depth) not in self._improper:
                latex, after = self._fraction(at, end, depth)
                value = None if latex is None else proper(latex)
                if value is not None:
                    operand.fraction, at = value, after - 1
                else:
                    self._improper.add((at, end, depth))
        elif at + 2 < end and self.tokens[at].kind in (NUMBER, WORDS):
            joined = self.tokens[at].text == "and"  # "1 and 1/2", but "1/3 is 10 and 2/3 is 20"
            first = at + joined
            if not (joined and self.kind(at - 2) == RELATION == self.kind(first + 3)):
                operand.fraction = self._plain_fraction(first, end)
            at = first + 2 if operand.fraction is not None else at
        if operand.fraction is None:
            return at
        operand.decimals = None
        operand.span = (operand.span[0], self.tokens[at].end)
        return at + 1

    def _plain_fraction(self, at: int, end: int) -> Fraction | None:
        """A proper fraction of two small whole numbers, "3/4", at ``at``."""
        if at + 2 >= end or self.tokens[at + 1][:2] != (SIGN, "/"):
            return None
        if self.tokens[at].kind != NUMBER or self.tokens[at + 2].kind != NUMBER:
            return None
        top, bottom = number(self.tokens[at].text), number(self.tokens[at + 2].text)
        if top is None or bottom is None or top[1] or bottom[1]:
            return None
        return Fraction(top[0], bottom[0]) if 0 < top[0] < bottom[0] < 1000 else None

    def _group(self, at: int, end: int, depth: int) -> tuple[Operand | None, int]:
        close = self.closing.get(at, -1)
        if not at < close < end:
            return None, at + 1
        run, stop = self.run(at + 1, close, depth + 1)
        if run is None or stop != close or run.doubt:
            return None, at + 1
        group = Operand((self.tokens[at].start, self.tokens[close].end), group=run)
        if not run.operators and run.operands[0].decimals is not None:
            # (5), \boxed{5}, **{5}**: still one plain number, with its own place
            only = run.operands[0]
            group.span, group.decimals = only.span, only.decimals
        return group, close + 1

    def _root(self, at: int, end: int, depth: int) -> tuple[Operand | None, int]:
        r"""``\sqrt{16}``, ``√16``, ``sqrt(16)``; an index, as in ``\sqrt[3]{8}``, is not read."""
        token = self.tokens[at]
        indexed = self.kind(at + 1) == OPEN and self.tokens[at + 1].text == "["
        if indexed or self.kind(at + 1) not in (NUMBER, OPEN):
            return None, at + 1
        read = self._number if self.kind(at + 1) == NUMBER else self._group
        inside, after = read(at + 1, end, depth + 1)
        if inside is None:
            return None, at + 1
        run = Run([inside], start=inside.span[0], end=self.tokens[after - 1].end)
        return Operand((token.start, run.end), group=run, root=True), after

    def _fraction(self, at: int, end: int, depth: int) -> tuple[Operand | None, int]:
        r"""``\frac{1}{2}`` and ``\frac12``."""
        start = self.tokens[at].start
        if self.kind(at + 1) == NUMBER and re.fullmatch("[0-9]{2}", self.tokens[at + 1].text):
            token = self.tokens[at + 1]
            top, bottom = int(token.text[0]), int(token.text[1])
            value = Fraction(top, bottom) if bottom else None
            return Operand((start, token.end), value) if value is not None else None, at + 2
        top_group, middle = (
            self._group(at + 1, end, depth)
            if self.kind(at + 1) == OPEN
            else (
                None,
                at + 1,
            )
        )
        if top_group is None or self.kind(middle) != OPEN:
            return None, at + 1
        bottom_group, after = self._group(middle, end, depth)
        if bottom_group is None:
            return None, at + 1
        span = (start, self.tokens[after - 1].end)
        return Operand(span, group=top_group.group, bottom=bottom_group.group), after

    def _suffix(self, operand: Operand, at: int, end: int) -> tuple[Operand | None, int]:
        """Percent signs and units behind an operand; None where words change its value."""
        while at < end:
            token = self.tokens[at]
            touches = token.start == self.tokens[at - 1].end
            if token.kind == PERCENT:
                if self.kind(at + 1) in (NUMBER, OPEN) or operand.percent:
                    return None, at + 1  # a modulus
                operand.percent = True
                at += 1
            elif token.kind == WORDS:
                if token.text == "and" and operand.unit and self._names_more(operand, at + 1):
                    at += 2  # "3 cats and dogs + 4 cows"
                    continue
                if not is_unit(operand, token.text, touches):
                    return (None, at + 1) if spoils(token.text, touches) else (operand, at)
                at = self._area(operand, at + 1)
            elif token[:2] == (SIGN, "/") and self.kind(at + 1) == WORDS:
                letter = self.tokens[at + 1].text
                if len(letter) == 1 and letter not in ATTACHED:
                    return None, at + 1  # 24/Y
                operand.unit = f"{operand.unit} per {self.tokens[at + 1].text}"[:80]
                at = self._area(operand, at + 2)
            elif token.kind == OPEN and self._is_remark(at, end):
                at += 3
            elif token.kind == SIGN and token.text == "*" and self._closes_emphasis(at):
                at += 1
            else:
                break
        return operand, at

    def _names_more(self, operand: Operand, at: int) -> bool:
        return self.kind(at) == WORDS and is_unit(operand, self.tokens[at].text, False)

    def _area(self, operand: Operand, at: int) -> int:
        """Past the exponent of a measure: ``5 m^2``, ``3 m/s^{2}``."""
        if self.kind(at) != SIGN or self.tokens[at].text != "^" or not sizes_of(operand.unit):
            return at
        power, after = at + 1, at + 2
        if self.kind(power) == OPEN and self.closing.get(power) == power + 2:
            power, after = power + 1, power + 3
        if self.kind(power) != NUMBER or self.tokens[power].text not in ("2", "3"):
            return at
        operand.unit = f"{operand.unit}^{self.tokens[power].text}"
        return after

    def _closes_emphasis(self, at: int) -> bool:
        """``*5* + 3``: an asterisk that touches the number and is followed by an operator."""
        after = at + 1
        return (
            self.kind(after) in (SIGN, "=")
            and self.tokens[at].start == self.tokens[at - 1].end
            and self.tokens[after].start > self.tokens[at].end
        )

    def _is_remark(self, at: int, end: int) -> bool:
        """Words alone in brackets, as in ``3 (apples)``."""
        return (
            at + 2 < end
            and self.kind(at + 1) == WORDS
            and self.closing.get(at) == at + 2
            and is_remark(self.tokens[at + 1].text)
        )


def _matched(tokens: list[Token]) -> dict[int, int]:
    """Place of the closing bracket for each opening one that has one and is not nested too deep.

    Deeper ones are left out here, once: finding that out anew at each bracket would be quadratic.
    """
    found: dict[int, int] = {}
    stack: list[tuple[int, int]] = []  # place and height of what is inside
    for at, token in enumerate(tokens):
        if token.kind == OPEN:
            stack.append((at, 0))
        elif token.kind == CLOSE and stack:
            opened, height = stack.pop()
            if _CLOSERS.get(tokens[opened].text) != token.text:
                stack.clear()
                continue
            if height < MAX_DEPTH:
                found[opened] = at
            if stack:
                stack[-1] = (stack[-1][0], max(stack[-1][1], height + 1))
    return found
