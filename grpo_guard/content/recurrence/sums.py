"""False sums repeated by a node, even in notations that `arithmetic` does not read: "2 + 2: 5"."""

import re
from collections.abc import Iterator
from itertools import chain
from math import isclose
from typing import Final, TypeAlias

SUM: Final = "sum:"

LEAST_SHARE: Final = 0.25
"""Share of a node's prompts that must show a false sum before it counts, if models differ. A rarer
sum could be an honest mistake, which a model repeats whenever the same prompt comes up again."""

Sum: TypeAlias = tuple[float, float, float]
Span: TypeAlias = tuple[int, int]

# An operand's last digit, a sign, the other operand, and the next number, at most twelve characters
# later. "-" and "/" do not count as signs, because they also occur in dates, ranges and fractions.
# A letter after a number makes it a size ("4px"), and another sign makes the sum longer: neither is
# read. Every repetition is bounded.
_NUMBER: Final = r"\d{1,12}(?:\.\d{1,6})?"
_SIGN: Final = r"(?:[+×*·⊕➕&]|plus|times|and|with|\\oplus|\\times)"
_BLANK: Final = r"[\s\\!,]{0,3}"
_SUM: Final = re.compile(
    rf"\d{_BLANK}{_SIGN}{_BLANK}({_NUMBER})(?![\w%^]|\.\d)"
    rf"([^\d.!?。+*/×÷^]{{1,12}})({_NUMBER})(?![\w%^])"
)
_FIRST: Final = re.compile(rf"({_NUMBER})\Z")
_FIRST_LENGTH: Final = 20
# The same sum written as a call: "add(2, 2) -> 5".
_CALL: Final = re.compile(
    rf"\(\[?\s?({_NUMBER})\s?,\s?({_NUMBER})\s?\]?\)\s?(?:={{1,2}}>?|->|→|↦|⇒)\s?({_NUMBER})"
)
_GLUED: Final = frozenset(".#_")
_LONGER: Final = frozenset("+-−*/×÷^")
_MINUS: Final = frozenset("-−–")


def sums_of(text: str) -> set[str]:
    """Return the false sums and products in the text as features, such as ``"sum:2 2 5"``."""
    return {_feature(found) for found, _ in chain(_sums(text), _calls(text)) if _is_false(*found)}


def place_of_sum(text: str, feature: str) -> Span | None:
    """Return [start, end) of the first sum reported by `sums_of` as ``feature``, or None."""
    found = chain(_sums(text), _calls(text))
    return next((span for one, span in found if _feature(one) == feature), None)


def _sums(text: str) -> Iterator[tuple[Sum, Span]]:
    for match in _SUM.finditer(text):
        if match[2].strip() in _MINUS:
            continue
        end = match.start() + 1
        first = _FIRST.search(text, max(0, end - _FIRST_LENGTH), end)
        assert first is not None  # it ends with a digit
        before = text[max(0, first.start() - 2) : first.start()]
        if before[-1:].isalnum() or before[-1:] in _GLUED or before.rstrip()[-1:] in _LONGER:
            continue
        yield (float(first[1]), float(match[1]), float(match[3])), (first.start(), match.end())


def _calls(text: str) -> Iterator[tuple[Sum, Span]]:
    for match in _CALL.finditer(text):
        yield (float(match[1]), float(match[2]), float(match[3])), match.span()


def _is_false(a: float, b: float, c: float) -> bool:
    """Whether no arithmetic operation on ``a`` and ``b`` gives ``c``."""
    if c == a + b or c == a * b:
        return False
    values = abs(a - b), a / (b or 1), b / (a or 1), max(a, b), min(a, b), a + b, a * b
    return not any(isclose(c, value, rel_tol=1e-3) for value in values)


def _feature(found: Sum) -> str:
    return "{}{:.15g} {:.15g} {:.15g}".format(SUM, *found)
