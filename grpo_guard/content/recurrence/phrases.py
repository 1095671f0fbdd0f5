"""From a feature to the phrase that a person recognises, and to its place in a text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from grpo_guard.content.recurrence.programs import IMPORT, SHAPE, place_of_import
from grpo_guard.content.recurrence.words import ANY, END, pattern_of, words_of

# A word belongs to the phrase if this share of the examples has it in the same place.
_AGREE: Final = 0.8
_LONGEST: Final = 24
SHOWN: Final = 120


class Examples:
    """A node's latest texts, put into words when first needed.

    Args:
        texts: As they came.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        self._words: list[list[str]] | None = None

    def phrase(self, feature: str) -> str:
        """The longest wording around a feature on which the examples agree, for messages."""
        if feature.startswith((IMPORT, SHAPE)):
            return feature.replace(":", " ", 1)
        if self._words is None:
            self._words = [words_of(text) for text in self._texts]
        core = [word for word in feature.split(" ") if word != END]
        places = [(words, at) for words in self._words if (at := _place(words, core)) is not None]
        if places:
            before = _extend(places, lambda at, n: at - 1 - n)
            after = _extend(places, lambda at, n: at + len(core) + n)
            core = [*reversed(before), *core, *after]
        return " ".join(core)


def locate(text: str, phrase: str, feature: str) -> tuple[int, int] | None:
    """[start, end) of the phrase in ``text``, else of the feature, else None."""
    if feature.startswith(SHAPE):
        return None
    if feature.startswith(IMPORT):
        return place_of_import(text, feature)
    for words in (phrase.split(" "), feature.split(" ")):
        match = pattern_of(words).search(text)
        if match:
            return match.span()
    return None


def shown(phrase: str) -> str:
    """A phrase as it may stand in a message: escaped, on one line, short."""
    return ascii(phrase if len(phrase) <= SHOWN else f"{phrase[: SHOWN - 3]}...")


def _place(words: list[str], core: list[str]) -> int | None:
    """Where ``core`` stands among the words; `ANY` is not compared."""
    fixed = next((k for k, w in enumerate(core) if w != ANY), None)
    if fixed is None:
        return None
    at = -1
    while True:
        try:
            at = words.index(core[fixed], at + 1)
        except ValueError:
            return None
        start = at - fixed
        window = words[start : start + len(core)] if start >= 0 else []
        if len(window) == len(core) and all(
            c in (ANY, w) for c, w in zip(core, window, strict=True)
        ):
            return start


def _extend(places: list[tuple[list[str], int]], step: Callable[[int, int], int]) -> list[str]:
    added = list[str]()
    while len(added) < _LONGEST:
        ats = [(words, step(at, len(added))) for words, at in places]
        votes = Counter(words[at] for words, at in ats if 0 <= at < len(words))
        word, count = votes.most_common(1)[0] if votes else (END, 0)
        if word == END or count < _AGREE * len(places) or count < 2:
            break
        added.append(word)
    return added
