"""Spans of text that a reader can be asked about, and the sentences that a text is made of."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

MOST_SENTENCES: Final = 400
"""Sentences that are looked for in one text; what follows the last of them is not one."""
_LONGEST: Final = 400
# A terminator ends a sentence; so does a length that no sentence has, so that text without any
# terminator is still read in pieces. Both alternatives are bounded and cannot backtrack.
_SENTENCE: Final = re.compile(rf"[^\n.!?。！？]{{1,{_LONGEST}}}[.!?。！？]{{0,4}}")
_FEWEST_LETTERS: Final = 10
_CJK: Final = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
# One ideograph carries about as much as two letters.
_LETTERS_OF_IDEOGRAPH: Final = 2


@dataclass(frozen=True, slots=True)
class TextSpan:
    """A span in its place.

    Args:
        prompt: What was asked, as text; empty where the prompt is not to be believed.
        text: The completion.
        start: First character of the span in ``text``.
        end: The character after its last; ``0 <= start < end <= len(text)``.
        node: Who sent the completion; None where nobody knows.

    Raises:
        ValueError: the span does not lie in the text.
    """

    prompt: str
    text: str
    start: int
    end: int
    node: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end <= len(self.text):
            raise ValueError(
                f"TextSpan: expected 0 <= start < end <= {len(self.text)}, got "
                f"[{self.start}, {self.end})"
            )


def sentences(text: str) -> list[tuple[int, int]]:
    """[start, end) of each sentence of ``text`` that holds about ten letters or more.

    Formulas, numbers and markup between sentences are left out: they say little about who wrote
    them, and any reader finds them hard.

    Example:
        >>> sentences("12 + 3 = 15. All hail to the thief. Ok.")
        [(12, 35)]
    """
    found = list[tuple[int, int]]()
    for match in _SENTENCE.finditer(text):
        ideographs = len(_CJK.findall(match[0]))
        letters = sum(map(str.isalpha, match[0]))
        if letters + (_LETTERS_OF_IDEOGRAPH - 1) * ideographs >= _FEWEST_LETTERS:
            found.append(match.span())
            if len(found) == MOST_SENTENCES:
                break
    return found
