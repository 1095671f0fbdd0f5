"""What a prompt is about, and how much of a text stays with it."""

from __future__ import annotations

import re

# A megabyte of text is judged by its first part.
MAX_WORDS = 20_000
_WORD = re.compile(r"[^\W_]+")
_SENTENCE = re.compile(r"[^.!?\n]+(?:[.!?\n]+|$)")
_DIGIT = re.compile(r"[0-9]")
# A stem of this many letters makes "apples" and "apple", "selling" and "sells" one word.
_STEM = 4


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Words of no subject: a sentence that shares only these with the prompt is about something else.
_EMPTY = _words(
    "about after again also another because been before both could each does doing done even every "
    "from gets give gives have having here into just know left like made make makes many more most "
    "much must need needs next number once only other over same should since some such take takes "
    "than that their them then there therefore these they thing this those thus time times total "
    "under until very want wants well were what when where which while will with would your"
)


class Subject:
    """The stems of a prompt's words."""

    def __init__(self, prompt: str) -> None:
        words = [m[0] for m in _WORD.finditer(prompt.lower()[: MAX_WORDS * 10])][:MAX_WORDS]
        self.stems = {word[:_STEM] for word in words if _has_subject(word)}


def share_on_subject(text: str, subject: Subject) -> float:
    """Share of the words that stand in sentences with a digit or a word of the prompt."""
    on = total = 0
    for sentence in _SENTENCE.finditer(text[: MAX_WORDS * 20].lower()):
        words = _WORD.findall(sentence[0])
        total += len(words)
        if _DIGIT.search(sentence[0]) or any(
            word[:_STEM] in subject.stems for word in words if _has_subject(word)
        ):
            on += len(words)
    return on / total if total else 1.0


def _has_subject(word: str) -> bool:
    return len(word) >= _STEM and not word[0].isdigit() and word not in _EMPTY
