"""Expressions: what a run of tokens comes to, under each reading that its notation leaves open.

Human notation is not always arithmetic: a percentage may be a share or a plain number, a fraction
behind a number its decimals or a factor, and ``3 + 4 x 2`` may have been typed into a pocket
calculator. A side is read under the rules of arithmetic first and, where that does not hold, under
each other reading that it met (`Side.open`). What cannot be read for certain raises `Unread`.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, TypeAlias

from grpo_guard.content.arithmetic.characters import vulgar
from grpo_guard.content.arithmetic.notation import (
    BREAK,
    CLOSE,
    FRACTION,
    LETTER_X,
    MAX_DIGITS,
    NUMBER,
    OF,
    OPEN,
    PERCENT,
    RELATION,
    ROOT,
    SIGN,
    TIMES,
    UNKNOWN,
    VULGAR,
    WORDS,
    Rational,
    Token,
    number,
)
from grpo_guard.content.arithmetic.numbers import (
    UndefinedError,
    checked,
    divide,
    power,
    root,
)
from grpo_guard.content.arithmetic.units import (
    ATTACHED,
    SCALES,
    is_remark,
    sizes_of,
    unit_words,
)

MAX_DEPTH: Final = 24
MOST_READINGS: Final = 96
STARTS: Final = frozenset({NUMBER, OPEN, FRACTION, VULGAR, ROOT})
_ENDS: Final = frozenset({RELATION, BREAK, CLOSE, ""})
_CLOSERS: Final = {"(": ")", "[": "]", "{": "}"}
_DECIMAL_COMMA: Final = re.compile(r"[0-9]{1,9},[0-9]{1,9}")
_GROUPING_DOT: Final = re.compile(r"[0-9]{1,3}(?:\.[0-9]{3})+")

Reading: TypeAlias = frozenset[str]
ARITHMETIC: Final[Reading] = frozenset()
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "percent": ("plain", "relative"),  # 20% is 20; in a + 20%, a share of a
    "scale": ("unscaled",),  # "2 dozen" is 2
    "mixed": ("factor",),  # "1 1/2" is 1 times 1/2
    "tight": ("tight",),  # 6/2(3) divides by 6
    "of": ("of_last",),  # "half of 6 + 4" is 5
    "order": ("in_order",),  # 2 + 3 * 4 is 20
    "signs": ("signs_first",),  # -2^2 is 4
    "stack": ("stacked",),  # "2 / 1/4" is 8
    "comma": ("comma",),  # "1,5" is 1.5 and "1.200" is 1200
    "aside": ("aside",),  # "8 (2)" is 8, with a remark
    "bullet": ("bullet",),  # the dash in front is none of it
    "label": ("label",),  # "Day 1 - 20 + 30": the number in front is a label
    "factorial": ("exclaimed",),  # "4!" is 4
    **{f"unit{d}": (f"converted{d}",) for d in range(8)},  # 2 hours are 120 minutes
}


class Unread(Exception):  # noqa: N818 - it is no error
    """Something stands there that changes the value, and is not understood."""


@dataclass(slots=True)
class Side:
    """One side of an equation.

    Args:
        at, end: Its tokens.
        start, stop: Its place in the text.
        value: What it comes to by the rules of arithmetic; None if it is undefined.
        number: Place of the number, where it is one plain number.
        decimals: Of that number, or of the mantissa of ``3.0 * 10^8``; else None.
        operators: All of them, at any depth.
        units: What its numbers are counted in.
        degree: How many unknown letters each of its terms has: 1 in ``2S + 2S``.
        letters: These letters.
        open: Names of the readings that it leaves open.
        literals: Token and decimals of each number that may have been rounded.
        first: Value of what comes before its first operator.
        literal: The number or mantissa as it is written.
        dangling: An operator follows, with nothing behind it that can be read.
    """

    at: int
    end: int = 0
    start: int = 0
    stop: int = 0
    value: Rational | None = None
    number: tuple[int, int] | None = None
    decimals: int | None = None
    operators: list[str] = field(default_factory=list)
    units: list[str] = field(default_factory=list)
    degree: int = 0
    letters: set[str] = field(default_factory=set)
    open: set[str] = field(default_factory=set)
    literals: list[tuple[int, int]] = field(default_factory=list)
    first: Rational = 0
    literal: Rational = 0
    dangling: bool = False

    @property
    def is_number(self) -> bool:
        """Whether it is one plain number, such as a stated result."""
        return self.number is not None


@dataclass(slots=True)
class _Level:
    """Operands and operators of one pair of brackets."""

    values: list[Rational] = field(default_factory=list)
    operators: list[str] = field(default_factory=list)
    negative: list[bool] = field(default_factory=list)
    percent: list[bool] = field(default_factory=list)
    degrees: list[int] = field(default_factory=list)

    def add(self, value: Rational, negative: bool) -> None:
        """A number with nothing to it but its sign."""
        self.values.append(value)
        self.negative.append(negative)
        self.percent.append(False)
        self.degrees.append(0)

    def trim(self) -> None:
        """Forget an operand that could not be read to its end."""
        count = len(self.operators) + 1
        for part in (self.values, self.negative, self.percent, self.degrees):
            del part[count:]

    def behind_label(self) -> _Level:
        """Without the first operand."""
        return _Level(
            self.values[1:],
            self.operators[1:],
            self.negative[1:],
            self.percent[1:],
            self.degrees[1:],
        )

    def degree(self) -> int:
        """How many unknown letters each term has.

        Raises:
            Unread: the terms differ, so that the letter stands for a value of its own.
        """
        if not any(self.degrees):
            return 0
        terms = [self.degrees[0]]
        for operator, degree in zip(self.operators, self.degrees[1:], strict=True):
            if operator in "+-":
                terms.append(degree)
            elif operator == "/":
                terms[-1] -= degree
            elif operator == "^":
                raise Unread
            else:
                terms[-1] += degree
        if len(set(terms)) > 1:
            raise Unread
        return terms[0]


class Reader:
    """Reads sides from the tokens of one segment."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.count = len(tokens)
        self.closing, self.enclosing = _matched(tokens)

    def kind(self, at: int) -> str:
        """Kind of a token, "" outside."""
        return self.tokens[at].kind if 0 <= at < self.count else ""

    def side(self, at: int, end: int | None = None) -> Side:
        """The longest side that begins at token ``at``.

        Raises:
            Unread: none does.
        """
        side = Side(at)
        parse = _Parse(self, side, ARITHMETIC, {})
        try:
            side.value, side.end = parse.level(at, self.count if end is None else end, 0)
        except UndefinedError:
            # Its extent does not depend on values.
            parse.blind = True
            _, side.end = parse.level(at, self.count if end is None else end, 0)
        side.start, side.stop = self.tokens[at].start, self.tokens[side.end - 1].end
        return side

    def again(
        self, side: Side, reading: Reading, shift: Mapping[int, Rational] | None = None
    ) -> Rational | None:
        """The value of a side under another reading, or with some numbers shifted by so much."""
        reading = reading - ({"bullet", "label"} - side.open)
        try:
            value, end = _Parse(self, Side(side.at), reading, shift or {}).level(
                side.at, side.end, 0
            )
        except (Unread, UndefinedError):
            return None
        return value if end == side.end else None


def readings(*sides: Side) -> Iterator[Reading]:
    """The readings that the sides leave open, apart from the rules of arithmetic."""
    met = sorted(set().union(*(side.open for side in sides)))
    choices = [("", *_CHOICES[name]) for name in met]
    every = itertools.islice(itertools.product(*choices), 1, MOST_READINGS)
    return (frozenset(filter(None, chosen)) for chosen in every)


class _Parse:
    """One pass over a side under one reading."""

    def __init__(
        self, reader: Reader, side: Side, reading: Reading, shift: Mapping[int, Rational]
    ) -> None:
        self.reader = reader
        self.tokens = reader.tokens
        self.side = side
        self.reading = reading
        self.shift = shift
        self.blind = False

    def level(self, at: int, end: int, depth: int) -> tuple[Rational, int]:
        """Value of the operands from ``at`` on, and where they stop."""
        read = _Level()
        start = at
        if depth == 0 and "bullet" in self.reading:
            at += 1
        at = self._operand(read, at, end, depth)
        lone = at
        while at < end:
            sign, after = self._sign(read, at, end)
            if not sign:
                break
            try:
                at = self._operand(read, after, end, depth)
            except Unread:
                read.trim()
                self.side.dangling |= sign not in "fj"
                break
            read.operators.append(sign)
        if depth == 0:
            self._note_number(start, lone, at, read)
        self._note(read)
        if depth == 0 and "label" in self.reading and len(read.values) > 2:
            read = read.behind_label()
        self.side.degree = read.degree()
        return (0 if self.blind else self._value(read)), at

    def _note_number(self, start: int, lone: int, stop: int, read: _Level) -> None:
        """Whether the side is one plain number, or one with a power of ten."""
        side, tokens = self.side, self.tokens
        side.first = read.values[0]
        at = start
        while at < lone and tokens[at].kind in (SIGN, OPEN):
            at += 1
        plain = at < lone and tokens[at].kind == NUMBER
        literal = number(tokens[at].text) if plain else None
        if literal is None:
            return
        if stop == lone and not side.operators:
            last = at
            while last + 1 < lone and self._is_next_thousand(last + 1):
                last += 1
            side.number = tokens[at].start, tokens[last].end
            side.decimals = literal[1]
            side.literal = literal[0] if last == at else abs(read.values[0])
        elif read.operators == ["*", "^"] and read.values[1] == 10:
            side.decimals, side.literal = literal[1], literal[0]

    def _note(self, read: _Level) -> None:
        side, operators = self.side, set(read.operators)
        side.operators += read.operators
        if "j" in operators and "/" in operators:
            side.open.add("tight")
        if operators & set("+-") and operators & set("*/jf"):
            side.open.add("order")
        if "f" in operators and operators - {"f", "/"}:
            side.open.add("of")
        if "^" in operators and any(read.negative):
            side.open.add("signs")
        if "//" in "".join(read.operators):
            side.open.add("stack")

    def _value(self, read: _Level) -> Rational:
        reading, values, operators = self.reading, list(read.values), list(read.operators)
        if not operators:
            return checked(values[0])
        if "^" in operators:
            _powers(values, operators, read, reading)
        if "tight" in reading:
            _join(values, operators)
        if "stacked" in reading:
            _stack(values, operators)
        if "of_last" in reading and operators[0] == "f":
            return checked(values[0] * _fold(values[1:], operators[1:], reading, []))
        whole = len(values) == len(read.values)
        return _fold(values, operators, reading, read.percent if whole else [])

    def _sign(self, read: _Level, at: int, end: int) -> tuple[str, int]:
        """The operator at ``at``, "" if there is none, and where its right operand begins."""
        token, before = self.tokens[at], self.tokens[at - 1]
        if token.kind == SIGN:
            if self._is_separator(at, end):
                return "", at
            after = self.tokens[at + 1] if at + 1 < self.reader.count else token
            if token.text == LETTER_X and after.kind == OPEN and after.start == token.end:
                self.side.dangling = True  # x(0)
                return "", at
            if token.text != "+" and self.reader.kind(at + 1) == SIGN:
                # "2x - 3" with a letter x, "* + 1"
                if token.text == LETTER_X or self.tokens[at + 1].text == "+":
                    self.side.dangling = True
                    return "", at
            return ("*" if token.text in (LETTER_X, TIMES) else token.text), at + 1
        if token.kind == OF:
            part = (
                read.percent[-1] or read.operators[-1:] == ["/"] or before.kind in (CLOSE, VULGAR)
            )
            article = self.reader.kind(at + 1) == WORDS and self.tokens[at + 1].text.lower() in (
                "the",
                "those",
                "these",
            )
            return ("f", at + 1 + article) if part else ("", at)
        touches = token.start == before.end
        if token.kind == OPEN and token.text != "{" and before.kind != WORDS:
            if touches:
                return "j", at
            return ("j", at) if self._is_factor(at, end) else ("", at)
        if token.kind in (FRACTION, ROOT) and before.kind in (CLOSE, NUMBER, SIGN):
            return "j", at
        return "", at

    def _is_factor(self, at: int, end: int) -> bool:
        """``8 (2)``: a factor, or a remark that repeats a number."""
        close = self.reader.closing.get(at, -1)
        if not at < close < end:
            return False
        inside = {token.kind for token in self.tokens[at + 1 : min(close, at + 40)]}
        if not inside <= {NUMBER, SIGN, OPEN, CLOSE, FRACTION, ROOT, VULGAR, PERCENT}:
            return False
        self.side.open.add("aside")
        return "aside" not in self.reading

    def _is_separator(self, at: int, end: int) -> bool:
        """A dash between clauses, or the asterisk that ends Markdown's emphasis."""
        token, following = self.tokens[at], self.reader.kind(at + 1)
        spaced = token.start > self.tokens[at - 1].end
        if token.text == "-":
            apart = at + 1 >= self.reader.count or self.tokens[at + 1].start > token.end
            ends = following in (WORDS, "") or self._is_clause_end(at + 1)
            return spaced and apart and ends
        if token.text == TIMES:
            return following not in STARTS and following != SIGN
        return token.text == "*" and following in (WORDS, "", ";", CLOSE, "=", "?") and not spaced

    def _is_clause_end(self, at: int) -> bool:
        return self.reader.kind(at) == BREAK and self.tokens[at].text in ".,;:\n"

    def _operand(self, read: _Level, at: int, end: int, depth: int) -> int:
        """Add one operand, with its sign and what belongs to it; returns where it stops."""
        negative, signs = False, 0
        while at < end and self.tokens[at].kind == SIGN and self.tokens[at].text in ("+", "-"):
            negative ^= self.tokens[at].text == "-"
            at += 1
            signs += 1
            if signs > 2:
                raise Unread
        if at >= end:
            raise Unread
        self.side.degree = 0
        if self.tokens[at].kind == NUMBER and self._ends_behind(at, end):
            value, decimals = self._literal(self.tokens[at])
            if decimals:
                self.side.literals.append((at, decimals))
            value += self.shift.get(at, 0)
            read.add(-value if negative else value, negative)
            return at + 1
        value, after, part = self._plain(at, end, depth)
        read.percent.append(False)
        read.degrees.append(self.side.degree)
        value, after = self._suffix(read, value, after, end)
        read.values.append(-value if negative else value)
        read.negative.append(negative)
        if part and self.reader.kind(after) == OF:
            read.percent[-1] = read.percent[-1] or part
        return after

    def _ends_behind(self, at: int, end: int) -> bool:
        """Whether a number has neither unit nor anything else that belongs to it."""
        after = self.reader.kind(at + 1) if at + 1 < end else ""
        if after == SIGN:
            return self.reader.kind(at + 2) == NUMBER
        return after in _ENDS

    def _plain(self, at: int, end: int, depth: int) -> tuple[Rational, int, bool]:
        """Value of what is no sign and no unit, where it stops, and whether it is a fraction."""
        kind = self.tokens[at].kind
        if kind == NUMBER:
            return (*self._number(at, end, depth), False)
        if kind == VULGAR:
            found = vulgar(self.tokens[at].text)
            if found is None:
                raise Unread
            return found, at + 1, True
        if depth < MAX_DEPTH:
            if kind == OPEN:
                return (*self._group(at, end, depth), False)
            if kind == FRACTION:
                return (*self._fraction(at, end, depth), True)
            if kind == ROOT:
                return (*self._root(at, end, depth), False)
        raise Unread

    def _number(self, at: int, end: int, depth: int) -> tuple[Rational, int]:
        token, begin = self.tokens[at], at
        value, decimals = self._literal(token)
        at += 1
        while at < end and decimals == 0 and self._is_next_thousand(at):
            value = value * 1000 + int(self.tokens[at].text)
            at += 1
        if decimals:
            self.side.literals.append((begin, decimals))
        value += self.shift.get(begin, 0)
        if at < end and decimals == 0:
            return self._mixed(value, at, end, depth)
        return value, at

    def _literal(self, token: Token) -> tuple[Rational, int]:
        text = token.text
        if text.isdigit() and text[0] != "0" and len(text) <= MAX_DIGITS:
            return int(text), 0
        comma, grouping = _DECIMAL_COMMA.fullmatch(text), _GROUPING_DOT.fullmatch(text)
        if comma or grouping:
            self.side.open.add("comma")
            if "comma" in self.reading:
                if grouping:
                    return int(text.replace(".", "")), 0
                decimals = len(text) - text.index(",") - 1
                return Fraction(int(text.replace(",", "")), 10**decimals), decimals
        read = number(text)
        if read is not None:
            return read
        if comma is not None and "comma" not in self.reading:
            decimals = len(text) - text.index(",") - 1
            return Fraction(int(text.replace(",", "")), 10**decimals), decimals
        raise Unread

    def _is_next_thousand(self, at: int) -> bool:
        """``12 000``: three digits, one space behind at most three."""
        token, before = self.tokens[at], self.tokens[at - 1]
        digits = token.kind == NUMBER and len(token.text) == 3 and token.text.isdigit()
        return digits and token.start == before.end + 1 and len(before.text) <= 3

    def _mixed(self, value: Rational, at: int, end: int, depth: int) -> tuple[Rational, int]:
        """``1 1/2``, ``1½``, "1 and 1/2": a whole number and a proper fraction behind it."""
        part, after = None, at
        if self.tokens[at].kind == VULGAR:
            part, after = vulgar(self.tokens[at].text), at + 1
        elif self.tokens[at].kind == FRACTION and depth < MAX_DEPTH:
            part, after = self._proper(at, end)
        elif self.tokens[at].kind == NUMBER:
            part, after = self._slashed(at, end)
        elif self.tokens[at][:2] == (WORDS, "and"):
            part, after = self._slashed(at + 1, end)
        if part is None:
            return value, at
        self.side.open.add("mixed")
        return (value * part if "factor" in self.reading else value + part), after

    def _slashed(self, at: int, end: int) -> tuple[Fraction | None, int]:
        if at + 2 >= end or self.tokens[at + 1][:2] != (SIGN, "/"):
            return None, at
        return self._ratio(self.tokens[at], self.tokens[at + 2]), at + 3

    def _proper(self, at: int, end: int) -> tuple[Fraction | None, int]:
        r"""``\frac{1}{2}`` and ``\frac12`` of plain numbers below 1."""
        tokens = self.tokens[at + 1 : min(at + 7, end)]
        if [t.kind for t in tokens] == [OPEN, NUMBER, CLOSE, OPEN, NUMBER, CLOSE]:
            return self._ratio(tokens[1], tokens[4]), at + 7
        if tokens and tokens[0].kind == NUMBER and re.fullmatch("[0-9]{2}", tokens[0].text):
            top, bottom = int(tokens[0].text[0]), int(tokens[0].text[1])
            return (Fraction(top, bottom) if 0 < top < bottom else None), at + 2
        return None, at

    @staticmethod
    def _ratio(over: Token, under: Token) -> Fraction | None:
        top, bottom = number(over.text), number(under.text)
        if over.kind != NUMBER or under.kind != NUMBER or top is None or bottom is None:
            return None
        if top[1] or bottom[1] or not 0 < top[0] < bottom[0] < 1000:
            return None
        return Fraction(top[0]) / bottom[0]

    def _group(self, at: int, end: int, depth: int) -> tuple[Rational, int]:
        close = self.reader.closing.get(at, -1)
        if not at < close < end:
            raise Unread
        value, stop = self.level(at + 1, close, depth + 1)
        if stop != close:
            raise Unread
        return value, close + 1

    def _root(self, at: int, end: int, depth: int) -> tuple[Rational, int]:
        r"""``\sqrt{16}``, ``\sqrt[3]{8}``, ``√16``, ``sqrt(16)``."""
        self.side.operators.append("r")
        index, inside = 2, at + 1
        if self.reader.kind(inside) == OPEN and self.tokens[inside].text == "[":
            order = number(self.tokens[inside + 1].text) if inside + 2 < end else None
            if order is None or order[1] or self.reader.closing.get(inside) != inside + 2:
                raise Unread
            index, inside = int(order[0]), inside + 3
        if self.reader.kind(inside) == NUMBER:
            value, after = self._number(inside, end, MAX_DEPTH)
        elif self.reader.kind(inside) == OPEN:
            value, after = self._group(inside, end, depth + 1)
        else:
            raise Unread
        return (value if self.blind else root(value, index)), after

    def _fraction(self, at: int, end: int, depth: int) -> tuple[Rational, int]:
        self.side.operators.append("/")
        if self.reader.kind(at + 1) == NUMBER:
            part, after = self._proper(at, end)
            if part is None:
                raise Unread
            return part, after
        top, middle = self._group(at + 1, end, depth)
        degree = self.side.degree
        bottom, after = self._group(middle, end, depth)
        if self.side.degree:
            raise Unread
        self.side.degree = degree
        return (0 if self.blind else divide(top, bottom)), after

    def _suffix(self, read: _Level, value: Rational, at: int, end: int) -> tuple[Rational, int]:
        """Percent signs, factorials and units behind an operand."""
        counted = False
        while at < end:
            token = self.tokens[at]
            touches = token.start == self.tokens[at - 1].end
            if token.kind == PERCENT:
                if self.reader.kind(at + 1) in (NUMBER, OPEN) or read.percent[-1]:
                    raise Unread  # a modulus
                read.percent[-1] = True
                self.side.open.add("percent")
                value = value if "plain" in self.reading else Fraction(value, 100)
                at += 1
            elif token[:2] == (UNKNOWN, "!") and touches and self.reader.kind(at + 1) != UNKNOWN:
                value = self._factorial(value)
                at += 1
            elif token.kind == WORDS and not counted:
                value, after = self._unit(read, value, at, touches)
                if after == at:
                    break
                at, counted = after, True
            elif token[:2] == (SIGN, "/") and self.reader.kind(at + 1) == WORDS:
                at = self._per(at)
            elif token[:2] == (SIGN, "^") and (after := self._degrees(at + 1)):
                at = after
            elif token.kind == OPEN and self._is_remark(at, end):
                at += 3
            elif token[:2] == (SIGN, "*") and self._closes_emphasis(at):
                at += 1
            else:
                break
        return value, at

    def _factorial(self, value: Rational) -> Rational:
        self.side.open.add("factorial")
        if "exclaimed" in self.reading:
            return value
        if value.denominator != 1 or not 0 <= value <= 100:
            raise UndefinedError("a factorial")
        self.side.operators.append("!")
        return math.factorial(int(value))

    def _unit(self, read: _Level, value: Rational, at: int, touches: bool) -> tuple[Rational, int]:
        """Past the words that say of what there are so many; ``at`` if they say something else."""
        text = self.tokens[at].text
        words, head = unit_words(text), text.split(" ", 1)[0]
        if "_" in head:
            raise Unread
        if touches and text[0] != "-" and head not in ATTACHED - {head[0]}:
            if len(head) > 2:
                raise Unread
            read.degrees[-1] += 1
            self.side.letters.add(head)
        elif len(head) == 1 and not head.isupper() and head not in ATTACHED | {"a"}:
            raise Unread
        if words is None:
            return value, at + (touches and head in ATTACHED)
        self.side.units.append(text[:80])
        scale = SCALES.get(words[0], 1) if words else 1
        if scale != 1:
            self.side.open.add("scale")
            value = value if "unscaled" in self.reading else value * scale
        for dimension, size in sizes_of(text):
            self.side.open.add(f"unit{dimension}")
            if f"converted{dimension}" in self.reading:
                value = value * size
                break
        return value, self._area(at + 1, read)

    def _per(self, at: int) -> int:
        text = self.tokens[at + 1].text
        if (len(text) == 1 and text not in ATTACHED) or "_" in text:
            raise Unread  # 24/Y
        if unit_words(text) is None:
            raise Unread
        self.side.units.append(f"per {text}"[:80])
        return self._area(at + 2, None)

    def _degrees(self, at: int) -> int:
        r"""Past ``^\circ`` and ``^{\circ}``; 0 if it is another exponent."""
        inner = at + 1 if self.reader.kind(at) == OPEN else at
        if self.reader.kind(inner) != WORDS or self.tokens[inner].text != "degrees":
            return 0
        self.side.units.append("degrees")
        return inner + 1 + (inner > at)

    def _area(self, at: int, read: _Level | None) -> int:
        """Past the exponent of a measure: ``5 m^2``, ``3 m/s^{2}``."""
        if self.reader.kind(at) != SIGN or self.tokens[at].text != "^":
            return at
        if not sizes_of(self.tokens[at - 1].text):
            raise Unread
        exponent, after = at + 1, at + 2
        if self.reader.kind(exponent) == OPEN and self.reader.closing.get(exponent) == exponent + 2:
            exponent, after = exponent + 1, exponent + 3
        if self.reader.kind(exponent) != NUMBER or self.tokens[exponent].text not in ("2", "3"):
            raise Unread
        if read is not None and read.degrees[-1]:
            read.degrees[-1] = int(self.tokens[exponent].text)
        self.side.units.append("power")
        return after

    def _is_remark(self, at: int, end: int) -> bool:
        """Words alone in brackets, as in ``3 (apples)``, with an operator behind them."""
        return (
            at + 2 < end
            and self.tokens[at].start > self.tokens[at - 1].end
            and self.reader.kind(at + 1) == WORDS
            and self.reader.closing.get(at) == at + 2
            and is_remark(self.tokens[at + 1].text)
        )

    def _closes_emphasis(self, at: int) -> bool:
        """``*5* + 3``: an asterisk that touches the number and is followed by an operator."""
        return (
            self.reader.kind(at + 1) in (SIGN, "=")
            and self.tokens[at].start == self.tokens[at - 1].end
            and self.tokens[at + 1].start > self.tokens[at].end
        )


def _powers(values: list[Rational], operators: list[str], read: _Level, reading: Reading) -> None:
    """Right to left; a sign in front of the base counts after the power, as in -2^2 = -4."""
    for at in range(len(operators) - 1, -1, -1):
        if operators[at] != "^":
            continue
        base, exponent = values[at], values.pop(at + 1)
        outside = read.negative[at] and "signs_first" not in reading
        value = power(-base if outside else base, exponent)
        values[at] = -value if outside else value
        del operators[at]


def _stack(values: list[Rational], operators: list[str]) -> None:
    """a / b / c as a / (b/c), and a / b / c / d as (a/b) / (c/d)."""
    at = 0
    while at < len(operators):
        length = 0
        while at + length < len(operators) and operators[at + length] == "/":
            length += 1
        if length in (2, 3):
            behind = at + length - 1
            values[behind] = divide(values[behind], values.pop(behind + 1))
            del operators[behind]
            length -= 1
        at += max(length, 1)


def _join(values: list[Rational], operators: list[str]) -> None:
    for at in range(len(operators) - 1, -1, -1):
        if operators[at] == "j":
            values[at] = checked(values[at] * values.pop(at + 1))
            del operators[at]


def _fold(
    values: list[Rational], operators: list[str], reading: Reading, percent: list[bool]
) -> Rational:
    total: Rational = 0
    term, sign = values[0], 1
    relative = "relative" in reading and bool(percent)
    in_order = "in_order" in reading
    for at, operator in enumerate(operators):
        value = values[at + 1]
        if operator in "+-":
            term, total = 0 if in_order else value, total + sign * term
            sign = 1 if operator == "+" else -1
            if relative and percent[at + 1]:
                term = total * value
            elif in_order:
                term, total, sign = total + sign * value, 0, 1
        elif operator == "/":
            term = divide(term, value)
        else:
            term = checked(term * value)
    return checked(total + sign * term)


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
