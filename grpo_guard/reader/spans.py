"""Spans of text that a reader can be asked about, and the sentences that a text is made of."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

MOST_BYTES: Final = 200
"""Of a sentence in UTF-8; longer ones are cut. No tokenizer makes more tokens of so many bytes."""
_LONGEST: Final = MOST_BYTES
# A terminator ends a sentence. So does a length at which most have ended, at the last blank before
# it, so that a reader sees all of a text without terminators. What is tried again is bounded.
_PIECE: Final = re.compile(
    rf"[^\n.!?。！？]{{1,{_LONGEST}}}(?:[.!?。！？]{{1,4}}|(?=\n|\Z)|(?<=\s))"
    rf"|[^\n.!?。！？]{{1,{_LONGEST}}}"
)
_FEWEST_LETTERS: Final = 10
_CJK: Final = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
# One ideograph carries about as much as two letters.
_LETTERS_OF_IDEOGRAPH: Final = 2
# Words, but neither variables nor commands of LaTeX.
_WORD: Final = re.compile(rf"(?<![\\a-zA-Z])[^\W\d_]{{3,}}|{_CJK.pattern}")


@dataclass(frozen=True, slots=True)
class TextSpan:
    """A span in its place.

    Args:
        prompt: What was asked, as text; empty where the prompt is not to be believed.
        text: The completion.
        start: First character of the span in ``text``.
        end: The character after its last; ``0 <= start < end <= len(text)``.
        node: The sender of the completion; None if unknown.

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


def sentences(text: str) -> Iterator[tuple[int, int]]:
    """[start, end) of each sentence of ``text`` that holds about ten letters or more, in order.

    Shorter ones are put together with what follows them, so that nothing is hidden by being said in
    pieces. Formulas, numbers and markup between sentences are left out: they say little about who
    wrote them, and any reader finds them hard.

    Examples:
        >>> list(sentences("12 + 3 = 15. All hail to the thief. Ok."))
        [(12, 35)]
        >>> list(sentences("All hail. 15. Bob."))
        [(0, 18)]
    """
    for start, end in _joined(text):
        size = len(text[start:end].encode("utf-8", "replace"))
        step = math.ceil((end - start) / math.ceil(size / MOST_BYTES))
        yield from ((at, min(at + step, end)) for at in range(start, end, step))


def _joined(text: str) -> Iterator[tuple[int, int]]:
    held: int | None = None
    letters = end = 0
    for match in _PIECE.finditer(text):
        if held is not None and match.end() - held > _LONGEST:
            yield held, end
            held, letters = None, 0
        letters += _letters(match[0])
        if letters >= _FEWEST_LETTERS:
            yield match.start() if held is None else held, match.end()
            held, letters = None, 0
        elif _WORD.search(match[0]):
            held, end = match.start() if held is None else held, match.end()
        elif held is None:
            letters = 0
    if held is not None:
        yield held, end


def _letters(piece: str) -> int:
    return sum(map(str.isalpha, piece)) + (_LETTERS_OF_IDEOGRAPH - 1) * len(_CJK.findall(piece))
