"""Find false inequalities between numbers, such as ``2 + 2 > 4``.

Handles only plain numbers and the four basic operations, without brackets, units or percentages;
everything else is skipped. That is enough, because these findings are merely counted and reject
nothing by themselves.
"""

import operator
import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from grpo_guard.content.arithmetic.notation import scan
from grpo_guard.content.arithmetic.numbers import Rational
from grpo_guard.content.arithmetic.reader import Reader

MOST: Final = 20
_NUMBER: Final = r"\$?[0-9]{1,12}(?:\.[0-9]{1,6})?"
_SIDE: Final = rf"{_NUMBER}(?:[ ]?[-+*/x×÷][ ]?{_NUMBER}){{0,4}}"
# The sign is searched for first, because finding one of a few characters is fast.
_SIGN: Final = re.compile(
    r"([<>≤≥](?:(?<=[<>])=)?+)(?:(?<=[0-9].)|(?<=[0-9][ ].)|(?<=[0-9].=)|(?<=[0-9][ ].=))"
    r"[ ]?(?=\$?[0-9])"
)
_LEFT: Final = re.compile(rf"(?<![\w.,/*+×÷=$-])(?<![=+*/x×÷-][ ]){_SIDE}\Z")
_RIGHT: Final = re.compile(rf"{_SIDE}(?![\w%])(?![.,][0-9])(?![ ]?[-+*/×÷(^][ ]?[\w$(])")
_WINDOW: Final = 100
_HOLDS: Final[dict[str, Callable[[Rational, Rational], bool]]] = {
    "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge,
    "≤": operator.le, "≥": operator.ge,
}  # fmt: skip


class Inequality(NamedTuple):
    """A false inequality: the values of its two sides, and its span in the text."""

    left: Rational
    right: Rational
    span: tuple[int, int]


def wrong_inequalities(text: str) -> Iterator[Inequality]:
    """Yield at most `MOST` false inequalities in ``text``, in time linear in its length."""
    found = 0
    for sign in _SIGN.finditer(text):
        stop = sign.start() - (text[sign.start() - 1] == " ")
        left = _LEFT.search(text, max(0, stop - _WINDOW), stop)
        right = _RIGHT.match(text, sign.end())
        if left is None or right is None:
            continue
        values = _value(left), _value(right)
        if values[0] is None or values[1] is None or _HOLDS[sign[1]](values[0], values[1]):
            continue
        yield Inequality(values[0], values[1], (left.start(), right.end()))
        found += 1
        if found >= MOST:
            return


def _value(side: re.Match[str]) -> Rational | None:
    """Return the value of a side, or None if it divides by zero or cannot be parsed."""
    reader = Reader(scan(side.string, *side.span()))
    read = reader.side(0)
    return read.value if read is not None and read.end == reader.count else None
