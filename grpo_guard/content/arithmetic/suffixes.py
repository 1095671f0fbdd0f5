"""Parse what follows an operand: percent signs, factorials, units and remarks."""

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Final

from grpo_guard.content.arithmetic import notation as t
from grpo_guard.content.arithmetic.notation import Token
from grpo_guard.content.arithmetic.numbers import Rational, UndefinedError
from grpo_guard.content.arithmetic.side import Level, Reading, Side, Unread
from grpo_guard.content.arithmetic.units import (
    ATTACHED,
    SCALES,
    is_plain,
    is_remark,
    sizes_of,
    unit_words,
)

_FACTORS: Final = frozenset({t.NUMBER, t.OPEN, t.FRACTION, t.ROOT, t.VULGAR})
_MOST_FACTORIAL: Final = 100  # the largest number whose factorial is calculated


class Suffixes:
    """Reads the suffixes of an operand.

    Args:
        tokens: The segment's tokens.
        kinds: The kinds of the tokens; see `Reader`.
        closing: Token index of the closing bracket for each opening bracket's index.
        side: The side being parsed, which collects what is found along the way.
        reading: The alternatives to choose where notation is ambiguous.
        shift: Amounts to add to numbers, by token index.

    Attributes:
        undefined: Whether part of the side has no value. Parsing continues all the same, because
            where a side ends does not depend on values.
    """

    def __init__(
        self,
        tokens: list[Token],
        kinds: str,
        closing: Mapping[int, int],
        side: Side,
        reading: Reading,
        shift: Mapping[int, Rational],
    ) -> None:
        self.tokens = tokens
        self.kinds = kinds
        self.closing = closing
        self.side = side
        self.reading = reading
        self.shift = shift
        self.undefined = False
        self.mixed = False

    def defined(self, calculate: Callable[..., Rational], *operands: Any) -> Rational:
        """Call a function and return its value; if it has none, set `undefined` and return 0."""
        try:
            return calculate(*operands)
        except UndefinedError:
            self.undefined = True
            return 0

    def suffix(self, read: Level, value: Rational, at: int, end: int) -> tuple[Rational, int]:
        """Parse percent signs, factorials and units after an operand; return (value, end)."""
        counted, this = False, len(read.values)
        while at < end:
            kind, token = self.kinds[at], self.tokens[at]
            touches = token.start == self.tokens[at - 1].end
            after = at
            if kind == t.WORDS and not counted:
                value, after = self._unit(read, value, at, touches)
                counted = True
            elif kind == t.PERCENT:
                if self.kinds[at + 1] in (t.NUMBER, t.OPEN) or this in read.percent:
                    raise Unread  # a modulus
                read.percent.add(this)
                self.side.open.add("percent")
                value = value if "plain" in self.reading else Fraction(value, 100)
                after = at + 1
            elif kind == t.UNKNOWN and token.text == "!" and touches and not counted:
                if self.kinds[at + 1] != t.UNKNOWN:
                    exclaims = value > _MOST_FACTORIAL and self._ends_a_result(at)
                    value, after = value if exclaims else self._factorial(value), at + 1
            elif kind == t.OPEN and self._is_remark(at, end):
                after = at + 3
            elif kind == t.SIGN and touches and not counted and self._is_letter_x(at, end):
                read.degrees[this] = read.degrees.get(this, 0) + 1
                self.side.letters.add("x")
                after, counted = at + 1, True
            elif kind == t.SIGN:
                after = self._behind_sign(at)
            if after == at:
                break
            at = after
        return value, at

    def _behind_sign(self, at: int) -> int:
        r"""Skip "/hour", ``^\circ`` or a Markdown asterisk, but no other sign; return the end."""
        sign = self.tokens[at].text
        if sign == "/" and self.kinds[at + 1] == t.WORDS:
            return self._per(at)
        if sign == "^":
            return self._degrees(at + 1) or at
        return at + (sign == "*" and self._closes_emphasis(at))

    def _is_letter_x(self, at: int, end: int) -> bool:
        """Whether a sign is the letter x with nothing to multiply after it, as in ``3x + 4x``."""
        if self.tokens[at][:2] != (t.SIGN, t.LETTER_X):
            return False
        return at + 1 >= end or self.kinds[at + 1] not in _FACTORS

    def _ends_a_result(self, at: int) -> bool:
        """Whether an exclamation mark merely ends a stated result, as in ``114 + 2 = 117!``.

        Called only for numbers so large that no left side could equal their factorial.
        """
        stated = at - 2 - (self.kinds[at - 2] == t.SIGN)  # the result could be negative
        if self.kinds[at - 1] != t.NUMBER or self.kinds[stated] != t.RELATION:
            return False
        behind = self.kinds[at + 1]
        apart = behind in (t.NUMBER, t.OPEN) and self.tokens[at + 1].start > self.tokens[at].end
        return apart or behind in (t.OUTSIDE, t.BREAK, t.WORDS, t.CLOSE)

    def _factorial(self, value: Rational) -> Rational:
        self.side.open.add("factorial")
        if "exclaimed" in self.reading:
            return value
        if value.denominator != 1 or not 0 <= value <= _MOST_FACTORIAL:
            self.undefined = True
            return value
        self.side.operators.append("!")
        return math.factorial(int(value))

    def _unit(self, read: Level, value: Rational, at: int, touches: bool) -> tuple[Rational, int]:
        """Skip the words of a unit and apply its scale; return (value, end).

        Other words are not skipped, in which case the end is ``at``.
        """
        text = self.tokens[at].text
        words, head = unit_words(text), text.split(" ", 1)[0]
        if self._is_letter(text, head, touches):
            this, power = len(read.values), {"²": 2, "³": 3}.get(head[-1], 1)
            read.degrees[this] = read.degrees.get(this, 0) + power
            self.side.letters.add(head.rstrip("²³"))
            words = unit_words(text[len(head) :])
        elif not is_plain(head):
            raise Unread  # 23₅, 8C2, 3 p1, 3 O₂ of a chemical equation
        if words is None:
            return value, at + (touches and head in ATTACHED)
        self.side.units += [text[:80], "power"] if head[-1] in "²³" else [text[:80]]
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

    def _is_letter(self, text: str, head: str, touches: bool) -> bool:
        """Whether the words begin with a variable of one or two letters rather than a unit."""
        letters = head.rstrip("²³")
        if len(letters) > 1 and (not touches or text[0] == "-" or head in ATTACHED):
            return False
        if len(letters) > 2 or not letters.isalpha() or (text == "a" and not touches):
            raise Unread
        return touches or head != "a"

    def _per(self, at: int) -> int:
        text = self.tokens[at + 1].text
        if not is_plain(text.partition(" ")[0]):
            raise Unread  # 24/Y, 1/di
        if unit_words(text) is None:
            raise Unread
        self.side.units.append(f"per {text}"[:80])
        return self._area(at + 2, None)

    def _degrees(self, at: int) -> int:
        r"""Return the end of the exponent in ``^\circ`` or ``^{\circ}``; 0 for other exponents."""
        inner = at + 1 if self.kinds[at] == t.OPEN else at
        if self.kinds[inner] != t.WORDS or self.tokens[inner].text != "degrees":
            return 0
        self.side.units.append("degrees")
        return inner + 1 + (inner > at)

    def _area(self, at: int, read: Level | None) -> int:
        """Skip the exponent of a measure, as in ``5 m^2`` and ``3 m/s^{2}``; return its end."""
        if self.kinds[at] != t.SIGN or self.tokens[at].text != "^":
            return at
        if not sizes_of(self.tokens[at - 1].text):
            raise Unread
        exponent, after = at + 1, at + 2
        if self.kinds[exponent] == t.OPEN and self.closing.get(exponent) == exponent + 2:
            exponent, after = exponent + 1, exponent + 3
        if self.kinds[exponent] != t.NUMBER or self.tokens[exponent].text not in ("2", "3"):
            raise Unread
        if read is not None and read.degrees.get(len(read.values)):
            read.degrees[len(read.values)] = int(self.tokens[exponent].text)
        self.side.units.append("power")
        return after

    def _is_remark(self, at: int, end: int) -> bool:
        """Whether brackets contain only words, as in ``3 (apples)``, and can be skipped."""
        return (
            at + 2 < end
            and self.tokens[at].start > self.tokens[at - 1].end
            and self.tokens[at].text != "{"
            and self.kinds[at + 1] == t.WORDS
            and self.closing.get(at) == at + 2
            and is_remark(self.tokens[at + 1].text)
        )

    def _closes_emphasis(self, at: int) -> bool:
        """Whether an asterisk touches a number and is followed by an operator: ``*5* + 3``."""
        return (
            self.kinds[at + 1] in (t.SIGN, "=")
            and self.tokens[at].start == self.tokens[at - 1].end
            and self.tokens[at + 1].start > self.tokens[at].end
        )
