"""How much of a completion says nothing new: repeats itself, the question, or is off the subject.

Padding is cheap only while it need not be thought of. Each kind of cheap padding leaves a mark that
honest working does not have in quantity: word sequences that were there before, sequences of the
prompt, sentences that say over again what one sentence before them said, sentences without a number
or a word that the prompt is about, and emptiness. A number alone does not put a sentence on the
subject: a step works with numbers of the prompt or of earlier steps, padding with any.
"""

from __future__ import annotations

import re
import zlib
from collections import deque
from dataclasses import dataclass

# Sequences of this many words recur in honest working ("so he has 5 + 3 ="); of this many, with
# their numbers, only when a step is written again.
NGRAM = 6
# Sentences are counted, n-grams stored: a megabyte of text is judged by its first part.
MAX_WORDS = 20_000
MAX_COMPRESSED = 200_000
_WORD = re.compile(r"[^\W_]+")
_SENTENCE = re.compile(r"[^.!?\n]+(?:[.!?\n]+|$)")
# Runs of three and more: "\n\n" and "..." are typography, and so is one rule or ellipsis.
_RUN = re.compile(r"\s{3,}|([^\w\s])\1{3,}")
# Share of a sentence's words that have to be the prompt's where its numbers come from nowhere.
_ON_SUBJECT = 0.5
# Sentences of more than twice as many words are taken apart.
_CLAUSE = 12
# A sentence is compared with so many before it; it is restated if this share of at least so many
# stems and numbers stood in one of them.
_COMPARED = 60
_RESTATED, _LEAST_RESTATED = 0.85, 4
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


@dataclass(frozen=True, slots=True)
class Redundancy:
    """Shares of a text, all in [0, 1].

    Args:
        words: How many the shares are of.
        repeated: Words inside sequences that stood earlier in the text.
        echoed: Words inside sequences of the prompt, where they are not repeated.
        idle: Words in sentences with neither a digit nor a word of the prompt.
        foreign: Words in sentences whose numbers come from nowhere and which are hardly about the
            prompt.
        restated: Words in sentences of which nearly all stands in one sentence before, in any
            order.
        bare: Share of the characters that are runs of blanks or of one punctuation mark.
        compressed: Size after zlib over size before; 1 where the text is short.
        span: The longest stretch that is repeated or echoed, in characters.
    """

    words: int
    repeated: float
    echoed: float
    idle: float
    foreign: float
    restated: float
    bare: float
    compressed: float
    span: tuple[int, int] | None

    @property
    def waste(self) -> float:
        """The share that brings nothing new about the question."""
        words = self.repeated + self.echoed + self.idle + self.foreign + self.restated
        return self.bare + (1 - self.bare) * min(1.0, words)


class Subject:
    """What a prompt is about: its word sequences and stems, made once per group."""

    def __init__(self, prompt: str) -> None:
        words = [m[0] for m in _WORD.finditer(prompt.lower()[: MAX_WORDS * 10])][:MAX_WORDS]
        self.sequences = {tuple(words[i : i + NGRAM]) for i in range(len(words) - NGRAM + 1)}
        self.stems = {word[:_STEM] for word in words if _has_subject(word)}
        self.numbers = {word for word in words if word.isdigit()}


def measure(text: str, subject: Subject) -> Redundancy:
    """The shares of one text, in time linear in its first `MAX_WORDS` words."""
    head = text[: MAX_WORDS * 20]
    found = [m.span() for m in _WORD.finditer(head)][:MAX_WORDS]
    lower = head.lower() if head.isascii() else "".join(c.lower()[:1] for c in head)
    words = [lower[start:end] for start, end in found]
    repeated, echoed = _covered(words, subject)
    covered = [r or e for r, e in zip(repeated, echoed, strict=True)]
    idle, foreign, restated = _off_subject(lower, words, found, covered, subject)
    total = max(len(words), 1)
    return Redundancy(
        len(words),
        sum(repeated) / total,
        (sum(covered) - sum(repeated)) / total,
        idle / total,
        foreign / total,
        restated / total,
        _bare(text),
        compressed(text),
        _longest(covered, found),
    )


def _bare(text: str) -> float:
    """Share of the text in runs of blanks or of one mark, beyond what typography has."""
    head = text[:MAX_COMPRESSED]
    empty = sum(m.end() - m.start() - 2 for m in _RUN.finditer(head))
    return empty / len(head) if head else 0.0


def _covered(words: list[str], subject: Subject) -> tuple[list[bool], list[bool]]:
    repeated, echoed = [False] * len(words), [False] * len(words)
    seen = set[tuple[str, ...]]()
    for i in range(len(words) - NGRAM + 1):
        sequence = tuple(words[i : i + NGRAM])
        if sequence in seen:
            repeated[i : i + NGRAM] = [True] * NGRAM
        elif sequence in subject.sequences:
            echoed[i : i + NGRAM] = [True] * NGRAM
        seen.add(sequence)
    return repeated, echoed


def _off_subject(
    lower: str,
    words: list[str],
    spans: list[tuple[int, int]],
    covered: list[bool],
    subject: Subject,
) -> tuple[int, int, int]:
    """(words in idle sentences, in foreign ones, in restated ones), of those not covered."""
    idle = foreign = restated = at = 0
    known = set(subject.numbers)
    said: deque[frozenset[str]] = deque(maxlen=_COMPARED)
    for sentence in _SENTENCE.finditer(lower):
        first = at
        while at < len(spans) and spans[at][0] < sentence.end():
            at += 1
        for start in range(first, at, _CLAUSE) if at - first > 2 * _CLAUSE else (first,):
            end = min(start + _CLAUSE, at) if at - first > 2 * _CLAUSE else at
            mine = words[start:end]
            numbers = {word for word in mine if word.isdigit()}
            letters = [word for word in mine if _has_subject(word)]
            on = sum(word[:_STEM] in subject.stems for word in letters)
            grounded = _grounded(numbers, known, on, letters)
            if grounded:
                known |= numbers
            fresh = covered[start:end].count(False)
            content = frozenset(word[:_STEM] for word in letters) | numbers
            if not numbers and len(letters) >= 3 and on == 0:
                idle += fresh
            elif not grounded and on < _ON_SUBJECT * len(letters) + (not letters):
                foreign += fresh
            elif fresh and len(content) >= _LEAST_RESTATED:
                most = max([len(content & old) for old in said], default=0)
                restated += fresh if most >= _RESTATED * len(content) else 0
            said.append(content)
    return idle, foreign, restated


def _grounded(numbers: set[str], known: set[str], on: int, letters: list[str]) -> bool:
    """Whether a step's numbers come from the prompt or from steps before it.

    One of three does where the words are the prompt's, or there are none ("2 * 8 = 16"): small
    numbers are alike everywhere.
    """
    share = len(numbers & known) / len(numbers) if numbers else 1.0
    return share >= 0.5 or (share >= 0.3 and (on > 0 or not letters))


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


def compressed(text: str) -> float:
    """Size after zlib over size before; 1 for texts too short to say."""
    data = text[:MAX_COMPRESSED].encode("utf-8", "replace")
    return min(1.0, len(zlib.compress(data, 1)) / len(data)) if len(data) >= 400 else 1.0


def _longest(covered: list[bool], spans: list[tuple[int, int]]) -> tuple[int, int] | None:
    count = first = start = 0
    if True in covered:
        for i, hit in enumerate([*covered, False]):
            if not hit:
                if i - start > count:
                    count, first = i - start, start
                start = i + 1
    return (spans[first][0], spans[first + count - 1][1]) if count else None
