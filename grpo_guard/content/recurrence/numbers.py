"""Numbers that can recur together: a false sum in a notation that no rule reads."""

from __future__ import annotations

import re
from typing import Final

NUMBERS: Final = "numbers:"

LEAST_SHARE: Final = 0.25
"""Share of a node's prompts from which on three numbers are no habit, if models differ. In 35 files
of published answers, no three numbers that one model favours are in more than 18 % of its prompts.
"""

# A number with a letter or a percent sign is a size or a name: style sheets repeat "0 4px 6px".
_NUMBER: Final = re.compile(r"\d(?<![\w.#]\d)\d{0,11}(?:\.\d{1,6})?(?![\w%])")
_GAP: Final = 12
# Finds fast what the precise pattern then reads.
_RUN: Final = re.compile(rf"\d{{1,12}}(?:\D{{1,{_GAP}}}\d{{1,12}}){{2,}}")


def numbers_of(text: str) -> set[str]:
    """Three numbers in a row as ``"numbers:2 2 5"``, at most twelve characters apart.

    Counting up or down, as lists and steps do, says nothing about the author.
    """
    found = set[tuple[str, str, str]]()
    for run in _RUN.finditer(text):
        start, end = run.span()
        # One character more, which may make the last number a size.
        row = _NUMBER.findall(text, start, end + 1)
        found.update(zip(row, row[1:], row[2:], strict=False))
    return {feature for three in found if (feature := _feature(*three))}


def place_of_numbers(text: str, feature: str) -> tuple[int, int] | None:
    """[start, end) of the first three numbers that `numbers_of` calls ``feature``."""
    for run in _RUN.finditer(text):
        start, end = run.span()
        row = list(_NUMBER.finditer(text, start, end + 1))
        for one, two, three in zip(row, row[1:], row[2:], strict=False):
            if _feature(one[0], two[0], three[0]) == feature:
                return one.start(), three.end()
    return None


def each_number(prompt: str) -> set[str]:
    """The single numbers of a prompt, as `is_excused` compares them."""
    return {f"{float(number):g}" for number in _NUMBER.findall(prompt)}


def is_excused(feature: str, prompt_words: frozenset[str]) -> bool:
    """Whether the prompt contains all three numbers."""
    return prompt_words.issuperset(feature.removeprefix(NUMBERS).split(" "))


def _feature(one: str, two: str, three: str) -> str | None:
    a, b, c = float(one), float(two), float(three)
    return None if b - a == c - b else f"{NUMBERS}{a:g} {b:g} {c:g}"
