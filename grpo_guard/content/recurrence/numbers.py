"""False sums that can recur, also in notations that `arithmetic` does not read: "2 + 2: 5"."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from math import isclose
from typing import Final

NUMBERS: Final = "numbers:"

LEAST_SHARE: Final = 0.25
"""Share of a node's prompts from which on a false sum is no habit, if models differ: a model that
errs on a prompt does so each time the prompt comes back."""

# Two operands, and the next number up to twelve characters on. "-" and "/" are no signs here, since
# dates, ranges and fractions have them too. A letter makes a size ("4px"), a further sign a longer
# sum. Each class is bounded, and no two that follow each other share a character but spaces.
_NUMBER: Final = r"\d{1,12}(?:\.\d{1,6})?"
_SIGN: Final = r"(?:\+|×|\*|·|⊕|➕|&|plus|times|and|with|\\oplus|\\times)"
_GAP: Final = 12
_SUM: Final = re.compile(
    rf"({_NUMBER})[\s\\!,]{{0,3}}{_SIGN}[\s\\!,]{{0,3}}({_NUMBER})(?![\w%^]|\.\d)"
    rf"([^\d.!?。+*/×÷^]{{1,{_GAP}}})({_NUMBER})(?![\w%^])"
)
# The same as a call: "add(2, 2) -> 5".
_CALL: Final = re.compile(
    rf"\(\[?\s?({_NUMBER})\s?,\s?({_NUMBER})()\s?\]?\)\s?(?:={{1,2}}>?|->|→|↦|⇒)\s?({_NUMBER})"
)
_GLUED: Final = frozenset(".#_")
_LONGER: Final = frozenset("+-−*/×÷^")
_MINUS: Final = frozenset("-−–")


def numbers_of(text: str) -> set[str]:
    """False sums and products as ``"numbers:2 2 5"``, however the result is written."""
    return {feature for feature, _ in _false_sums(text)}


def place_of_numbers(text: str, feature: str) -> tuple[int, int] | None:
    """[start, end) of the first sum that `numbers_of` calls ``feature``."""
    return next((span for found, span in _false_sums(text) if found == feature), None)


def _false_sums(text: str) -> Iterator[tuple[str, tuple[int, int]]]:
    for match in chain(_SUM.finditer(text), _CALL.finditer(text)):
        before = text[max(0, match.start() - 2) : match.start()]
        joined = before[-1:].isalnum() or before[-1:] in _GLUED
        if match[0][0] != "(" and (joined or before.rstrip()[-1:] in _LONGER):
            continue
        if match[3].strip() in _MINUS:
            continue
        a, b, c = float(match[1]), float(match[2]), float(match[4])
        values = (a + b, a * b, abs(a - b), a / (b or 1), b / (a or 1), max(a, b), min(a, b))
        if not any(isclose(c, value, rel_tol=1e-3) for value in values):
            yield f"{NUMBERS}{a:.15g} {b:.15g} {c:.15g}", match.span()
