"""`AnswerWordsVerifier`: finds words in a numeric answer that the question does not use."""

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import ClassVar, Unpack

from grpo_guard.content.rules import RuleOptions, RuleVerifier
from grpo_guard.content.screens.answers import FORMATS, AnswerFormat
from grpo_guard.content.screens.view import WORDS, blanked, shown
from grpo_guard.content.severity import COUNT, Kind
from grpo_guard.core.completion import Completion
from grpo_guard.core.scope import Scope
from grpo_guard.core.verdict import Finding, Verdict, accept

MAX_CHARACTERS = 1_000_000
SAID = AnswerFormat.of_pattern(
    "Answer:",
    "nswer",
    r"[Aa]nswer(?:\*\*)?(?: is)?[:*\s]{1,6}(?:is:? )?([-+$€£]{0,2}[0-9][^\n]{0,80})",
    closing_words=1,
)
"""The format of an answer in a sentence: "Answer: 54 cows", "The answer is 54 cows"."""
# A number, followed by words that occur in no formula: symbols have only a letter or two.
_NUMBER = re.compile(r"[^\w\n]{0,12}[0-9]{1,40}+(?:[.,][0-9]{1,40}+){0,9}+(?![\w^=])")
_WORD = re.compile(r"[^\W\d_]{4,}")
# Where the answer ends and the sentence continues.
_STOP = re.compile(
    r"[.,;:!?=<(\n]|\b(?:and|are|as|at|because|by|each|for|from|in|is|or|so|since|than|that|the|to"
    r"|was|when|where|which|who|with)\b",
    re.IGNORECASE,
)
_COMMAND = re.compile(r"\\(?:begin|end)\{\w{1,20}\*?\}|\\[A-Za-z]{1,20}|<[^<>\s]{1,40}>")
# Number of characters of the answer to read: a number and its unit are short.
_READ = 200
_STEM = 3
# Function words, and units even if the question words them differently.
_UNITS = WORDS["units"]
_PREFIX = re.compile(r"^(?:kilo|centi|milli|micro|nano|mega|giga)|s$")


class AnswerWordsVerifier(RuleVerifier):
    """Counts words after an answer's number that are neither in the question nor a unit.

    A reward reads "54 good cows" as 54, while training sees all of the words. A single such answer
    is not rejected: models phrase answers in different ways, and a unit that the question spells
    differently is not poison. Answers are rejected once their node has such words far more often
    than its peers. Words match if their first three letters do, so "cow" in the question covers
    "cows". Formulas are left alone.

    Cannot detect answers that do not begin with their number, or words of the question that are
    used to mislead.

    Args:
        formats: Formats in which this task writes answers, as for `ScreensVerifier`.
        **rules: Options passed to `RuleVerifier`: ``severity``, ``store``, and those for counting.
    """

    name = "answer_words"
    # Models phrase answers and spell units in different ways.
    KINDS: ClassVar[Mapping[str, Kind]] = {"answer_words": COUNT}
    scope: Scope = "completion"

    def __init__(
        self, *, formats: Sequence[AnswerFormat] = (*FORMATS, SAID), **rules: Unpack[RuleOptions]
    ) -> None:
        super().__init__(**rules)
        self.formats = tuple(formats)

    def look(self, batch: Sequence[Completion]) -> list[Verdict]:
        """Accept every completion, with at most one finding per answer format."""
        stems_of = cache(_stems)  # a batch has few prompts
        return [accept(self.name, findings=tuple(self._findings(one, stems_of))) for one in batch]

    def _findings(
        self, completion: Completion, stems_of: Callable[[str], frozenset[str]]
    ) -> Iterator[Finding]:
        text = completion.text[:MAX_CHARACTERS]
        for form in self.formats:
            answer = _answer(form, text) if form.gate in text else None
            if answer is None:
                continue
            start, piece = answer
            stems = stems_of(completion.trusted_prompt_text[:MAX_CHARACTERS])
            for word in _WORD.finditer(piece.lower()):
                if word[0][:_STEM] not in stems and not _is_unit(word[0]):
                    place = (start + word.start(), start + word.end())
                    message = f"{shown(word[0][:40])} is in the answer but not in the question"
                    yield Finding("answer_words", message, char_span=place)
                    break


def _is_unit(word: str) -> bool:
    return word in _UNITS or _PREFIX.sub("", _PREFIX.sub("", word)) in _UNITS


def _stems(prompt: str) -> frozenset[str]:
    """Return the beginnings of the prompt's words."""
    return frozenset(word[:_STEM] for word in re.findall(r"[^\W\d_]{2,}", prompt.lower()))


def _answer(form: AnswerFormat, text: str) -> tuple[int, str] | None:
    """Return (offset, text) of what follows the last answer's number, or None without a number."""
    last = next(iter(deque(form.find(text), maxlen=1)), None)
    if last is None:
        return None
    start = max(text.find(last.content, last.start, last.end), last.start)
    piece = text[start : start + min(len(last.content), _READ)]
    if form.closing_words:
        # A unit can follow the mark, but closing characters and LaTeX commands are not words.
        piece = piece.ljust(last.end - start) + text[last.end : last.end + _READ]
    piece = blanked(_COMMAND, piece)
    number = _NUMBER.match(piece)
    stop = _STOP.search(piece, number.end()) if number else None
    return (start + number.end(), piece[number.end() : stop and stop.start()]) if number else None
