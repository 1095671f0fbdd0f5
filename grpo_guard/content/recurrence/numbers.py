"""Numbers that can recur together: a false sum in a notation that no rule reads."""

from __future__ import annotations

import re
from collections.abc import Iterator
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


def numbers_of(text: str) -> set[str]:
    """Three numbers of a sentence as ``"numbers:2 2 5"``, at most twelve characters apart.

    Left out are numbers that count up or down, as lists do, and what is next to a true sum,
    difference, product or quotient: if a problem is asked again, its working recurs.
    """
    return {feature for feature, _ in _false_triples(text)}


def place_of_numbers(text: str, feature: str) -> tuple[int, int] | None:
    """[start, end) of the first three numbers that `numbers_of` calls ``feature``."""
    return next((span for found, span in _false_triples(text) if found == feature), None)


def each_number(prompt: str) -> set[str]:
    """The single numbers of a prompt, as `is_excused` compares them."""
    return {f"{float(number):g}" for number in _NUMBER.findall(prompt)}


def is_excused(feature: str, prompt_words: frozenset[str]) -> bool:
    """Whether the prompt contains all three numbers."""
    return prompt_words.issuperset(feature.removeprefix(NUMBERS).split(" "))


def _false_triples(text: str) -> Iterator[tuple[str, tuple[int, int]]]:
    for run in _RUN.finditer(text):
        start, end = run.span()
        # One character more, which may make the last number a size.
        row = list(_NUMBER.finditer(text, start, end + 1))
        values = [float(number[0]) for number in row]
        triples = list(zip(values, values[1:], values[2:], strict=False))
        holds = [_holds(*triple) for triple in triples]
        for k, (a, b, c) in enumerate(triples):
            if not any(holds[max(0, k - 2) : k + 3]):
                yield f"{NUMBERS}{a:g} {b:g} {c:g}", (row[k].start(), row[k + 2].end())


def _holds(a: float, b: float, c: float) -> bool:
    """Whether they count up or down, or one operation on the first two gives the third."""
    return b - a == c - b or a + b == c or a - b == c or a * b == c or a == b * c
