"""`AnswerWordsVerifier`: words inside a numeric answer that the question does not have."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Unpack

from grpo_guard.completion import Completion
from grpo_guard.content.answers import Answer
from grpo_guard.content.rules import RuleOptions, RuleVerifier
from grpo_guard.content.screens.answers import FORMATS, AnswerFormat
from grpo_guard.content.screens.view import shown, word_set
from grpo_guard.content.severity import ANSWER_WORDS
from grpo_guard.verdict import Finding, Verdict, accept

MAX_CHARACTERS = 1_000_000
_WORD = re.compile(r"[^\W\d_]{2,}")
_COMMAND = re.compile(r"\\[A-Za-z]{1,20}")
_DIGIT = re.compile(r"[0-9]")
# Of the answer that is read; a number and its unit are short.
_READ = 200
_STEM = 3
# What an answer is measured in, though the question may say it otherwise, and small words.
_UNITS = word_set(
    "dollar dollars cent cents euro euros pound pounds usd percent degree degrees "
    "second seconds minute minutes hour hours day days week weeks month months year years am pm "
    "mm cm km meter meters metre metres mile miles inch inches foot feet yard yards "
    "gram grams kg kilogram kilograms ounce ounces oz lb lbs ton tons liter liters litre litres ml "
    "gallon gallons square cubic sq mph kph per and or in of to the an is more less left each "
    "total people person times times units unit items item"
)


class AnswerWordsVerifier(RuleVerifier):
    """Counts words in a numeric answer that are neither the question's nor a unit.

    A reward reads "54 good cows" as 54, and every reader of the answer reads the rest. One
    such answer does not reject: models differ in how they write an answer, and a unit that the
    question spells otherwise is no poison. Where one node has such words far more often than its
    peers, they do. A word of the question is recognised by its first three letters,
    so that "cow" excuses "cows".

    Sees nothing in answers without a number, and no word of the question put where it misleads.

    Args:
        formats: How this task writes answers, as for `ScreensVerifier`.
        **rules: ``severity``, ``store`` and ``batch_alpha`` of `RuleVerifier`.
    """

    name = "answer_words"
    KINDS = frozenset(ANSWER_WORDS)
    looks_alone = True

    def __init__(
        self, *, formats: Sequence[AnswerFormat] = FORMATS, **rules: Unpack[RuleOptions]
    ) -> None:
        super().__init__(**rules)
        self.formats = tuple(formats)

    def look(self, batch: Sequence[Completion]) -> list[Verdict]:
        """One verdict per completion, each accepted; at most one finding per format of answers."""
        asked: dict[str, frozenset[str]] = {}
        return [accept(self.name, findings=tuple(self._findings(one, asked))) for one in batch]

    def _findings(
        self, completion: Completion, asked: dict[str, frozenset[str]]
    ) -> Iterator[Finding]:
        text = completion.text[:MAX_CHARACTERS]
        for form in self.formats:
            last = _last(form, text) if form.gate in text else None
            if last is None:
                continue
            start, end = _place(form, last, text)
            piece = _COMMAND.sub(lambda command: " " * len(command[0]), text[start:end])
            if not _DIGIT.search(piece):
                continue
            stems = _stems(completion.prompt_text[:MAX_CHARACTERS], asked)
            for word in _WORD.finditer(piece.lower()):
                if word[0] not in _UNITS and word[0][:_STEM] not in stems:
                    place = (start + word.start(), start + word.end())
                    message = f"{shown(word[0][:40])} stands in the answer and not in the question"
                    yield Finding("answer_words", message, char_span=place)
                    break


def _stems(prompt: str, asked: dict[str, frozenset[str]]) -> frozenset[str]:
    """Beginnings of a prompt's words; read once, however many answers it has."""
    if prompt not in asked:
        asked[prompt] = frozenset(word[:_STEM] for word in _WORD.findall(prompt.lower()))
    return asked[prompt]


def _last(form: AnswerFormat, text: str) -> Answer | None:
    return next(iter(deque(form.find(text), maxlen=1)), None)


def _place(form: AnswerFormat, answer: Answer, text: str) -> tuple[int, int]:
    """The answer, and what may follow it on its line as a unit."""
    start = max(text.find(answer.content, answer.start, answer.end), answer.start)
    end = min(start + len(answer.content), start + _READ)
    if form.closing_words:
        line = text.find("\n", answer.end)
        end = min(len(text) if line < 0 else line, answer.end + _READ)
    return start, min(end, start + 2 * _READ)
