"""Other arithmetics: residues, finite fields, bases, operations that a question defines.

In the field of 11 elements ``2^4 = 5`` is right. A question that names such an arithmetic excuses
the whole answer. An answer that names one only excuses that line: otherwise an attacker could
switch the rule off with one word. A modulus named in either excuses what is congruent under it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Final

from grpo_guard.content.arithmetic.chains import Link
from grpo_guard.content.arithmetic.notation import MAX_DIGITS, NUMBER
from grpo_guard.content.arithmetic.numbers import Rational
from grpo_guard.content.arithmetic.side import ARITHMETIC, Side

_FIELD: Final = r"(?:\\math(?:bb|bf|rm) ?\{?[ZF]\}?_|ℤ_|𝔽_|(?<![A-Za-z])(?:Z_(?=\{?[0-9])|GF ?\())"
_RESIDUES: Final = rf"[Mm]od(?:ulo|ular)?(?![a-z])|\\equiv|≡|congruent|finite field|{_FIELD}"
_LINE: Final = re.compile(
    rf"{_RESIDUES}|(?<![A-Za-z])[Xx][Oo][Rr]"
    r"|(?:[Ii]n|to|from) (?:base|binary|hex|octal)|[(,] ?base[ -][0-9]"
)
# Every match contains one of these, and searching for them first is several times faster.
_STEMS: Final = (
    "mod", "equiv", "≡", "congruent", "field", "mathb", "mathrm", "z_", "ℤ_", "𝔽_", "gf", "xor",
    "base", "binary", "hex", "octal",
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
    r"(?<![A-Za-z])(?:[Xx][Oo][Rr](?![A-Za-z])|[Bb]itwise)"
    r"|(?i:operation|define|定义|运算)[^\n]{0,200}[\w)}] ?(?:\*|\\ast|∗|\\circ) ?[\w({]"
)
_NUMBER: Final = re.compile(r"(?<![0-9.,])[0-9]{1,6}(?![0-9])")
_LONGEST_PROMPT: Final = 20_000
_MOST: Final = 100
_BASES: Final = range(2, 17)
_SPELT: Final = ("two", "three", "four", "five", "six", "seven", "eight", "nine")


class Another:
    """The other arithmetics that a completion and its question mention.

    Args:
        text: The completion, folded.
        asked: The text of its question.
    """

    def __init__(self, text: str, asked: str) -> None:
        self._text = text
        self._asked = asked[:_LONGEST_PROMPT]

    def beside(self, source: str, start: int, end: int) -> str:
        """Why equations of ``source[start:end]`` are in doubt; empty if they are not."""
        named = self._is_named and _LINE.search(source, start, end) is not None
        return "another arithmetic" if named or self._is_asked else ""

    def holds(self, link: Link, exact: Rational, stated: Rational) -> str:
        """Name the other arithmetic in which an equation holds; empty if it holds in none."""
        if self._moduli and "bullet" in link.left.open:  # "- 7^3 = 5"
            exact = link.reader.again(link.left, frozenset({"bullet"})) or exact
        if any((exact - stated) % modulus == 0 for modulus in self._moduli):
            return "a modulus"
        return "a base" if any(_holds_in(link, base) for base in self._bases) else ""

    @cached_property
    def _moduli(self) -> frozenset[int]:
        """All possible moduli except 2, which would excuse every second result."""
        named = _MODULUS.findall(self._text)[:_MOST] if self._is_named else []
        if _ASKED_RESIDUES.search(self._asked):
            named += (_MODULUS.findall(self._asked) or _NUMBER.findall(self._asked))[:_MOST]
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
        return _ASKED_OTHERWISE.search(self._asked) is not None


def _holds_in(link: Link, base: int) -> bool:
    """Whether two sides are equal if the numbers in one or both are read in a base."""
    left, right = ([side.value, _in_base(link, side, base)] for side in (link.left, link.right))
    return any(a is not None and a == b for a in left for b in right)


def _fits(digits: str, base: int) -> bool:
    return len(digits) <= MAX_DIGITS and int(max(digits)) < base


def _in_base(link: Link, side: Side, base: int) -> Rational | None:
    """The value of a side with its numbers read in a base, if their digits allow it."""
    shift: Mapping[int, Rational] = {
        at: int(token.text, base) - int(token.text)
        for at, token in enumerate(link.reader.tokens[side.at : side.end], side.at)
        if token.kind == NUMBER and token.text.isdigit() and _fits(token.text, base)
    }
    return link.reader.again(side, ARITHMETIC, shift)
