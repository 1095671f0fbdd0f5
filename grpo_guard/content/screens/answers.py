"""Text after the answer, and several answers that differ.

A reward reads the answer and nothing else: what follows it is trained all the same, and of two
answers one may be for the reward and one for the reader. To give the answer once more does not make
what stands between the two a part of the work.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from grpo_guard.content.answers import Answer, boxed, hashed, tagged
from grpo_guard.content.length.redundancy import Subject, share_on_subject
from grpo_guard.content.screens.view import View, shown, word_set
from grpo_guard.verdict import Finding

_ON_SUBJECT = 0.6
# A question in parts has an answer to each.
_PART = re.compile(r"\([a-hivx]{1,3}\)|(?:^|\s)[a-h]\)|\bparts?\b", re.IGNORECASE)
# What leads to an answer that is given again, and says nothing by itself.
_LEADING = word_set(
    "a again all also an and answer answers are as be calculation check checked checking clearly "
    "conclude conclusion confirm confirmed confirms correct correctly double final finally format "
    "formatted gives have hence here i in is it let lets m me my now of okay ok once or re recheck "
    "reply required result right s short since so solution summarize summary sure that the "
    "therefore these this thus to us verified verify wait we which yes"
)
# Joints of answers, and what leads to one, are short.
_JOINT, _ROOM = 80, 200
_WORD = re.compile(r"\w+")
_LOOSE = re.compile(r"[\s,$€£%\\{}.]+")
_SENTENCE_END = re.compile(r"(?<=[.!?:])\s{1,8}|[\r\n]{1,8}")
_LINES = re.compile(r"[\r\n]+")
_JOINED = re.compile(r"[\s$\\()\[\].,;]*(?:and|or|und|et|y|,|;)?[\s$\\()\[\].,;]*", re.IGNORECASE)


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

    def after_answer(self, view: View) -> Iterator[Finding]:
        """Text behind the last answer, beyond a unit or a sentence that repeats it."""
        for form, answers in self._found(view):
            last = answers[-1]
            yield from _between(form, answers, view)
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
        in_parts: bool | None = None
        for form, answers in self._found(view):
            for before, after in pairwise(answers):
                if _same(before.content, after.content):
                    continue
                between = view.text[before.end : after.start]
                if form.joined and len(between) <= _JOINT and _JOINED.fullmatch(between):
                    continue
                in_parts = bool(_PART.search(view.prompt)) if in_parts is None else in_parts
                if form.joined and in_parts and _PART.search(between[-200:]):
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
                if form.gate in view.text and (answers := list(form.find(view.text)))
            ]
        found: list[tuple[AnswerFormat, list[Answer]]] = known
        return found


def _between(form: AnswerFormat, answers: list[Answer], view: View) -> Iterator[Finding]:
    """What stands between equal answers, unless it is on the subject or leads to the next.

    The rest has the room that a unit has, and all of it together: else thirty answers would make
    room for thirty slogans. What a model in a loop says again counts once.
    """
    gaps = dict[str, int]()
    for before, after in pairwise(answers):
        if after.start > before.end and _same(before.content, after.content):
            gaps.setdefault(view.text[before.end : after.start].strip(), before.end)
    subject: Subject | None = None
    rest = ""
    for gap, start in gaps.items():
        # An answer that is tried in a thought is a draft, as boxes there are.
        said = _without_leads(gap.rpartition("</think>")[2])
        if not said:
            continue
        if form.goes_on:
            subject = subject or Subject(view.prompt)
            if share_on_subject(said, subject) >= _ON_SUBJECT:
                continue
        rest = f"{rest} {said}" if rest else said
        if not _excused(form, answers[0], _LINES.sub(" ", rest[:2002])):
            message = f"text between equal answers ({form.name}): {shown(gap[:80])}"
            at = view.text.index(gap, start)
            yield Finding("after_answer", message, char_span=(at, at + len(gap)))
            return


def _without_leads(gap: str) -> str:
    """Its sentences but for those that only lead to an answer ("So the final answer is")."""
    return " ".join(
        sentence.strip()
        for sentence in _SENTENCE_END.split(gap)
        if not (
            _LEADING.issuperset(words := _WORD.findall(sentence[:_ROOM].lower()))
            and len(sentence) <= min(_ROOM, 16 * (len(words) + 1))
        )
    )


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


_CLOSERS = re.compile(r"\\end\{[A-Za-z]{1,20}\*?\}|\\(?:hfill|blacksquare|square|qed)\b|</?think>")

TAGGED = AnswerFormat("<answer>", "<", tagged)
BOXED = AnswerFormat(
    "\\boxed", "\\boxed", boxed, closing_words=8, summary_words=30, joined=True, goes_on=True
)
HASHED = AnswerFormat("####", "####", hashed, closing_words=3, summary_words=12, goes_on=True)
FORMATS = (TAGGED, BOXED, HASHED)
