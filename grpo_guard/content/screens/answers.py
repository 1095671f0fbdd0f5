"""Text after the answer, and several answers that differ.

A reward reads the answer and nothing else: what follows it is trained all the same, and of two
answers one may be for the reward and one for the reader.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import TypeVar

from grpo_guard.content.length.redundancy import Subject, share_on_subject
from grpo_guard.content.screens.view import View, shown
from grpo_guard.verdict import Finding

_T = TypeVar("_T")
_ON_SUBJECT = 0.6
# A question in parts has an answer to each.
_PART = re.compile(r"\([a-hivx]{1,3}\)|(?:^|\s)[a-h]\)|\bparts?\b", re.IGNORECASE)
# A text with more answers than this is flagged by the first of them.
_MOST = 32
_WORD = re.compile(r"\w+")
_LOOSE = re.compile(r"[\s,$€£%\\{}.]+")
_JOINED = re.compile(r"[\s$\\()\[\].,;]*(?:and|or|und|et|y|,|;)?[\s$\\()\[\].,;]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer in a text: its content, and the span with its marks."""

    content: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """How a task writes its final answer.

    Args:
        name: Stands in messages.
        gate: A piece of text without which there is no such answer; a cheap first look.
        find: All answers of a text in order, in linear time.
        closing_words: Words that may follow on the same line (a unit).
        summary_words: Words that may follow altogether if they repeat the answer.
        joined: Answers that stand side by side ("x = 1 or x = 2") are one.
        goes_on: The mark is used on the way too, as a heading or a box around a result: what
            follows is excused while most of it works on the question. Weak models go on so after
            one completion in a hundred; poison that speaks of the question passes here.
    """

    name: str
    gate: str
    find: Callable[[str], Iterator[Answer]]
    closing_words: int = 0
    summary_words: int = 0
    joined: bool = False
    goes_on: bool = False

    @classmethod
    def of_pattern(cls, name: str, gate: str, pattern: str, **limits: int) -> AnswerFormat:
        """A format from a regular expression whose group 1 is the answer.

        Raises:
            ValueError: the pattern has no group.
        """
        compiled = re.compile(pattern)
        if compiled.groups < 1:
            raise ValueError(f"pattern: expected one with a group, got {pattern!r}")

        def find(text: str) -> Iterator[Answer]:
            for match in compiled.finditer(text):
                yield Answer(match[1] or "", *match.span())

        return cls(name, gate, find, limits.get("closing_words", 0), limits.get("summary_words", 0))


class AnswerScreen:
    """Both screens over the formats of a task.

    Args:
        formats: Looked for in every text; those that do not occur cost one search each.
    """

    def __init__(self, formats: tuple[AnswerFormat, ...]) -> None:
        self.formats = formats

    def applies(self, text: str) -> bool:
        """Whether there could be an answer in one of the formats."""
        return any(form.gate in text for form in self.formats)

    def after_answer(self, view: View) -> Iterator[Finding]:
        """Text behind the last answer, beyond a unit or a sentence that repeats it."""
        for form, answers in self._found(view):
            last = answers[-1]
            tail = view.text[last.end :]
            if tail.isspace() or not tail or _excused(form, last, tail):
                continue
            if form.goes_on and share_on_subject(tail, Subject(view.prompt)) >= _ON_SUBJECT:
                continue
            start = last.end + len(tail) - len(tail.lstrip())
            message = f"text after the answer ({form.name}): {shown(tail.strip()[:80])}"
            yield Finding("after_answer", message, char_span=(start, len(view.text.rstrip())))

    def several_answers(self, view: View) -> Iterator[Finding]:
        """Answers of one format that are not the same."""
        for form, answers in self._found(view):
            for before, after in pairwise(answers):
                if _same(before.content, after.content):
                    continue
                between = view.text[before.end : after.start]
                if form.joined and (
                    _JOINED.fullmatch(between[:40])
                    or (_PART.search(between[-200:]) and _PART.search(view.prompt))
                ):
                    continue
                message = (
                    f"answers that differ ({form.name}): {shown(before.content)} and "
                    f"{shown(after.content)}"
                )
                yield Finding("several_answers", message, char_span=(after.start, after.end))
                break

    def _found(self, view: View) -> list[tuple[AnswerFormat, list[Answer]]]:
        """Each format that occurs with its answers; both screens ask, the text is read once."""
        known = view.notes.get(self)
        if known is None:
            known = view.notes[self] = [
                (form, answers)
                for form in self.formats
                if form.gate in view.text and (answers := _answers(form, view.text))
            ]
        found: list[tuple[AnswerFormat, list[Answer]]] = known
        return found


def _answers(form: AnswerFormat, text: str) -> list[Answer]:
    # The last one counts for what follows; more than the first few never matter otherwise.
    return list(_ends(form.find(text), _MOST))


def _ends(items: Iterator[_T], most: int) -> Iterator[_T]:
    """The first ones and the last one."""
    yield from islice(items, most)
    yield from deque(items, maxlen=1)


def _excused(form: AnswerFormat, answer: Answer, tail: str) -> bool:
    # What closes a formula, a block or a thought is no text.
    tail = _CLOSERS.sub(" ", tail[:2001])
    head, _, rest = tail[:2000].partition("\n")
    if len(tail) <= 2000:
        words = len(_WORD.findall(head))
        if not _WORD.search(rest):
            limit = form.closing_words
            # "####" and "!!!!" have no words either, and are not what follows an answer.
            return words <= limit and len(tail.strip()) <= 8 + 16 * max(limit, words)
        content = _LOOSE.sub("", answer.content)
        total = words + len(_WORD.findall(rest))
        return bool(content) and total <= form.summary_words and content in _LOOSE.sub("", tail)
    return False


def _same(one: str, other: str) -> bool:
    return _LOOSE.sub("", one).casefold() == _LOOSE.sub("", other).casefold()


# Readers of tags forgive case and blanks, and what they take for an answer is one.
_TAG_OPEN = re.compile(r"<\s{0,4}answer\s{0,4}>", re.IGNORECASE)
_TAG_CLOSE = re.compile(r"<\s{0,4}/\s{0,4}answer\s{0,4}>", re.IGNORECASE)
_BOXED = re.compile(r"\\boxed\s{0,4}\{")
_BRACE = re.compile(r"[{}]")
_BOX_LIMIT = 2000
_HASHES = re.compile(
    r"####[ \t]*([-+]?[$€£]?[ \t]?[0-9][0-9,]{0,40}(?:\.[0-9]{1,20})?)(?![0-9])"
    r"(?![.):][ \t]+[^\W\d])"
)
_CLOSERS = re.compile(r"\\end\{[A-Za-z]{1,20}\*?\}|\\(?:hfill|blacksquare|square|qed)\b|</?think>")
_HEADING = re.compile(r"^####[ \t]+[^\W\d]", re.MULTILINE)


def _tagged(text: str) -> Iterator[Answer]:
    if "wer" not in text.lower():  # these letters have no other forms that a tag could take
        return
    opened = iter(_TAG_OPEN.finditer(text))
    ahead, last, end = next(opened, None), None, 0
    for closed in _TAG_CLOSE.finditer(text):
        # The last opening tag since the answer before: one look at each, whatever their number.
        while ahead is not None and ahead.start() < closed.start():
            ahead, last = next(opened, None), ahead
        start = closed.start() if last is None or last.start() < end else last.end()
        begin = start if last is None or last.start() < end else last.start()
        end = closed.end()
        yield Answer(text[start : closed.start()], begin, end)


def _boxes(text: str) -> Iterator[Answer]:
    # What a reasoning model boxes while it thinks is a draft.
    thought = text.rfind("</think>")
    # Unclosed ones yield nothing, and each is walked to its limit: only so many are tried, and the
    # last of all, since a model in a loop boxes its answer a hundred times.
    boxes = _BOXED.finditer(text, max(thought, 0))
    for match in _ends(boxes, 2 * _MOST):
        depth = 1
        for brace in _BRACE.finditer(text, match.end(), match.end() + _BOX_LIMIT):
            depth += 1 if brace[0] == "{" else -1
            if depth == 0:
                yield Answer(text[match.end() : brace.start()], match.start(), brace.end())
                break


def _hashed(text: str) -> Iterator[Answer]:
    found = _HASHES.search(text)
    if found is None:
        return
    first = found.start()
    if text.find("####", 0, first) >= 0 and _HEADING.search(text, 0, first):
        return  # headings of the fourth level before it: Markdown, not GSM8K's mark
    answers = [Answer(m[1], *m.span()) for m in islice(_HASHES.finditer(text, first), _MOST)]
    if len(answers) > 1 and [a.content for a in answers[:2]] == ["1", "2"]:
        return  # numbered headings
    yield from answers


TAGGED = AnswerFormat("<answer>", "<", _tagged)
BOXED = AnswerFormat(
    "\\boxed", "\\boxed", _boxes, closing_words=8, summary_words=30, joined=True, goes_on=True
)
HASHED = AnswerFormat("####", "####", _hashed, closing_words=3, summary_words=12, goes_on=True)
FORMATS = (TAGGED, BOXED, HASHED)
