"""Numbers that can recur together: a false sum in a notation that no rule reads."""

from __future__ import annotations

import re
from math import isnan, nan
from typing import Final

NUMBERS: Final = "numbers:"

LEAST_SHARE: Final = 0.25
"""Share of a node's prompts from which on three numbers are no habit, if models differ. In 35 files
of published answers, no three numbers that one model favours are in more than 18 % of its prompts.
"""

# A number with a letter or a percent sign is a size or a name: style sheets repeat "0 4px 6px".
_NUMBER: Final = re.compile(r"\d(?<![\w.#]\d)\d{0,11}(?:\.\d{1,6})?(?![\w%])")
# Finds fast what the precise pattern then reads: numbers of one sentence and line.
_ROUGH: Final = r"\d{1,12}(?:\.\d{1,6})?"
_RUN: Final = re.compile(rf"{_ROUGH}(?:[^\d.!?。\n]{{1,12}}{_ROUGH}){{2,}}")

# Keeps numbers of different sentences apart.
_BETWEEN: Final = (nan, nan)


def numbers_of(text: str) -> set[str]:
    """Three numbers of a sentence as ``"numbers:2 2 5"``, at most twelve characters apart.

    Left out are numbers that count up or down, as lists do, and what is next to a true sum,
    difference, product or quotient: if a problem is asked again, its working recurs.
    """
    values = list[float]()
    for run in _RUN.finditer(text):
        start, end = run.span()
        # One character more, which may make the last number a size.
        values += map(float, _NUMBER.findall(text, start, end + 1))
        values += _BETWEEN
    explained, rest = set[int](), list[int]()
    for k, (a, b, c) in enumerate(zip(values, values[1:], values[2:], strict=False)):
        if a + b == c or a - b == c or a * b == c or a == b * c or b - a == c - b:
            explained.update((k - 2, k - 1, k, k + 1, k + 2))
        elif not isnan(a + b + c):
            rest.append(k)
    return {_feature(*values[k : k + 3]) for k in rest if k not in explained}


def place_of_numbers(text: str, feature: str) -> tuple[int, int] | None:
    """[start, end) of the first three numbers that `numbers_of` calls ``feature``."""
    for run in _RUN.finditer(text):
        start, end = run.span()
        row = list(_NUMBER.finditer(text, start, end + 1))
        for one, two, three in zip(row, row[1:], row[2:], strict=False):
            if _feature(float(one[0]), float(two[0]), float(three[0])) == feature:
                return one.start(), three.end()
    return None


def each_number(prompt: str) -> set[str]:
    """The single numbers of a prompt, as `is_excused` compares them."""
    return {f"{float(number):g}" for number in _NUMBER.findall(prompt)}


def is_excused(feature: str, prompt_words: frozenset[str]) -> bool:
    """Whether the prompt contains all three numbers."""
    return prompt_words.issuperset(feature.removeprefix(NUMBERS).split(" "))


def _feature(a: float, b: float, c: float) -> str:
    return f"{NUMBERS}{a:g} {b:g} {c:g}"
