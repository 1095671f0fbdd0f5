"""Other arithmetics: residues, finite fields, bases, operations defined by a question.

In the field of 11 elements, ``2^4 = 5`` is right. If the question names such an arithmetic, the
whole answer is excused. If only the answer names one, just the line with the name is excused;
otherwise an attacker could switch the rule off with a single word. A modulus named in either
excuses any equation whose sides are congruent under that modulus.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from grpo_guard.content.arithmetic.chains import Link
from grpo_guard.content.arithmetic.equation import Equation
from grpo_guard.content.arithmetic.literals import as_written
from grpo_guard.content.arithmetic.notation import MAX_DIGITS, NUMBER
from grpo_guard.content.arithmetic.numbers import Rational, magnitude
from grpo_guard.content.arithmetic.side import ARITHMETIC, Side
from grpo_guard.core.cached_property import cached_property

_FIELD: Final = (
    r"(?:\\math(?:bb|bf|rm) ?\{?[ZF]\}?_|ℤ_|𝔽_|(?<![A-Za-z])(?:Z_(?=\{?[0-9])|GF ?\()"
    r"|\\math(?:bb|bf|rm) ?\{?Z\}? ?/|ℤ ?/|(?<![A-Za-z])Z/(?=[0-9]{1,6} ?Z))"
)
_RESIDUES: Final = rf"[Mm]od(?:ulo|ular)?(?![a-z])|\\equiv|≡|congruent|finite field|{_FIELD}"
_LINE: Final = re.compile(
    rf"{_RESIDUES}|(?<![A-Za-z])[Xx][Oo][Rr]"
    r"|(?:[Ii]n|to|from) (?:base|binary|hex|octal)|[(,] ?base[ -][0-9]"
)
# Every match contains one of these, and searching for them first is several times faster.
_STEMS: Final = (
    "mod", "equiv", "≡", "congruent", "field", "mathb", "mathrm", "z_", "z/", "ℤ", "𝔽_", "gf",
    "xor", "base", "binary", "hex", "octal",
)  # fmt: skip
_MODULUS: Final = re.compile(
    rf"(?:[Mm]od(?:ulo)?\}}?|{_FIELD}|divided by|除以)[ {{($\\]{{0,6}}([0-9]{{1,6}})(?![0-9])"
)
_ASKED_RESIDUES: Final = re.compile(rf"{_RESIDUES}|remainder|residue|余数|同余")
_ASKED_BASES: Final = re.compile(
    r"(?<![A-Za-z])(?:[Bb]ase[ -]?(?:[0-9$]|two|three|four|five|six|seven|eight|nine|1)"
    r"|[Bb]inary|[Hh]exadecimal|[Oo]ctal)|进制"
)
_ASKED_OTHERWISE: Final = re.compile(
    r"(?<![A-Za-z])(?:[Xx][Oo][Rr](?![A-Za-z])|[Bb]itwise|(?i:tropical|(?:min|max)[ -]plus)"
    r"(?![A-Za-z])|[Ss]emiring)"
    r"|(?i:operation|define|定义|运算)[^\n]{0,200}[\w)}] ?(?:\*|\\ast|∗|\\circ) ?[\w({]"
)
# "5 & 3", "5 << 1" in a program; in LaTeX, & separates columns, and << opens a calculator's note.
_ASKED_BITS: Final = re.compile(
    r"(?<![0-9.])[0-9]{1,9} ?(?:&|<<) ?[0-9]{1,9}(?![0-9.]|[^<>\n]{0,99}>>)"
)
_ASKED_BOOLEAN: Final = re.compile(r"[Bb]oolean (?:algebra|arithmetic|logic|ring)")
_ASKED_WIDTH: Final = re.compile(
    r"(?<![A-Za-z0-9])(?:u?int(8|16|32|64)(?:_t)?(?![A-Za-z0-9])"
    r"|(8|16|32|64)[ -]bit (?:(?:un)?signed |two's.complement )?"
    r"(?:integer|int|number|arithmetic|value|word|register|sum|addition|variable))"
)
_ASKED_TURN: Final = re.compile(r"(?i)bearing|heading|rotat|compass")
_ASKED_PATTERN: Final = re.compile(r"(?i)(?<![a-z])(?:pattern|rule|logic|puzzle|riddle)s?(?![a-z])")
_EXAMPLE: Final = re.compile(r"\s*[0-9]{1,9}\s*([-+*/×÷·−])\s*[0-9]{1,9}\s*")
_LOUDEST: Final = 300
_NUMBER: Final = re.compile(r"(?<![0-9.,])[0-9]{1,6}(?![0-9])")
_LONGEST_PROMPT: Final = 20_000
_MOST: Final = 100
_BASES: Final = range(2, 17)
_SPELT: Final = ("two", "three", "four", "five", "six", "seven", "eight", "nine")


class Another:
    """The other arithmetics mentioned by a completion and its question.

    Args:
        text: The completion, folded.
        asked: The text of the completion's question.
    """

    def __init__(self, text: str, asked: str) -> None:
        self._text = text
        self._asked = asked[:_LONGEST_PROMPT]

    def beside(self, source: str, start: int, end: int) -> str:
        """Return why equations in ``source[start:end]`` are in doubt, or an empty string."""
        named = self._is_named and _LINE.search(source, start, end) is not None
        return "another arithmetic" if named or self._is_asked else ""

    def holds(self, link: Link, exact: Rational, stated: Rational) -> str:
        """Name an arithmetic, such as modular, in which the equation holds; "" if there is none."""
        if self.moduli and "bullet" in link.left.open:  # "- 7^3 = 5"
            exact = link.reader.again(link.left, frozenset({"bullet"})) or exact
        turns = self._is_turned and _are_all(link, "degrees")
        moduli = self.moduli | {360} if turns else self.moduli
        if any((exact - stated) % modulus == 0 for modulus in moduli):
            return "a modulus"
        if self._is_boolean and stated in (0, 1) and {0, 1}.issuperset(_numbers(link, link.left)):
            return "Boolean algebra"
        if _is_sum_of_levels(link, stated):
            return "decibels"
        return "a base" if any(_holds_in(link, base) for base in self._bases) else ""

    @cached_property
    def moduli(self) -> frozenset[int]:
        """All moduli that could apply, except 2, which would excuse every other wrong result."""
        named = _MODULUS.findall(self._text)[:_MOST] if self._is_named else []
        if _ASKED_RESIDUES.search(self._asked):
            named += (_MODULUS.findall(self._asked) or _NUMBER.findall(self._asked))[:_MOST]
        widths = _ASKED_WIDTH.findall(self._asked)[:_MOST]
        named += [str(2 ** int(before or behind)) for before, behind in widths]
        return frozenset(int(number) for number in named if int(number) > 2)

    @cached_property
    def _bases(self) -> list[int]:
        if not _ASKED_BASES.search(self._asked):
            return []
        small = self._asked.lower()
        named = {2 + at for at, word in enumerate(_SPELT) if word in small}
        named |= {int(number) for number in _NUMBER.findall(small)} | {2, 8, 16}
        return sorted(named.intersection(_BASES) - {10})

    @cached_property
    def _is_named(self) -> bool:
        small = self._text.lower()
        return any(stem in small for stem in _STEMS) and bool(_LINE.search(self._text))

    @cached_property
    def _is_asked(self) -> bool:
        if "\\" not in self._asked and _ASKED_BITS.search(self._asked):
            return True
        return _ASKED_OTHERWISE.search(self._asked) is not None

    @cached_property
    def _is_turned(self) -> bool:
        return _ASKED_TURN.search(self._asked) is not None

    @cached_property
    def _is_boolean(self) -> bool:
        return _ASKED_BOOLEAN.search(self._asked) is not None


def redefined(given: Iterable[Equation], asked: str) -> frozenset[str]:
    """Return the operator signs that the question redefines: ``3+4=21, 5+6=55``.

    Args:
        given: The question's equations. A sign counts as redefined if two or more examples
            of it are wrong and none is right.
        asked: The text of the question, which must ask for a pattern.
    """
    if not _ASKED_PATTERN.search(asked):
        return frozenset()
    wrong = Counter(sign_of(one.left) for one in given if not one.right)
    right = {sign_of(one.left) for one in given if one.right}
    return frozenset(sign for sign, count in wrong.items() if count > 1) - right - {""}


def sign_of(written: str) -> str:
    """Return the operator sign between two whole numbers, or an empty string for other text."""
    match = _EXAMPLE.fullmatch(written)
    return match[1] if match else ""


def _are_all(link: Link, unit: str) -> bool:
    """Whether all numbers on both sides of an equation have the given unit."""
    sides = link.left, link.right
    return all(side.units == [unit] * len(_numbers(link, side)) for side in sides)


def _numbers(link: Link, *sides: Side) -> list[Rational | None]:
    """Return the numbers of the given sides as written, with None for ambiguous numbers."""
    tokens = [token for side in sides for token in link.reader.tokens[side.at : side.end]]
    read = [as_written(token.text) for token in tokens if token.kind == NUMBER]
    return [None if one is None else one[0] for one in read]


def _is_sum_of_levels(link: Link, stated: Rational) -> bool:
    """Whether an equation adds the powers of sound levels: ``60 dB + 60 dB = 63 dB``."""
    if set(link.left.operators) != {"+"} or not _are_all(link, "dB"):
        return False
    levels = [level for level in _numbers(link, link.left) if level is not None]
    if not levels or max(levels) > _LOUDEST or magnitude(stated) > 2 * _LOUDEST:
        return False
    total = 10 * math.log10(sum(10 ** (float(level) / 10) for level in levels))
    last_digit = 0.1 ** min(link.right.decimals or 0, 3)
    return abs(total - float(stated)) <= last_digit


def _holds_in(link: Link, base: int) -> bool:
    """Whether two sides are equal if the numbers on one or both are read in the given base."""
    left, right = ([side.value, _in_base(link, side, base)] for side in (link.left, link.right))
    return any(a is not None and a == b for a in left for b in right)


def _fits(digits: str, base: int) -> bool:
    return len(digits) <= MAX_DIGITS and int(max(digits)) < base


def _in_base(link: Link, side: Side, base: int) -> Rational | None:
    """Return a side's value with its numbers read in a base wherever their digits allow it."""
    shift: Mapping[int, Rational] = {
        at: int(token.text, base) - int(token.text)
        for at, token in enumerate(link.reader.tokens[side.at : side.end], side.at)
        if token.kind == NUMBER and token.text.isdigit() and _fits(token.text, base)
    }
    return link.reader.again(side, ARITHMETIC, shift)
