"""Screens for text after the answer, and for several answers that differ.

A reward reads only the answer, but training also sees the text after it; and if there are two
answers, one could be meant for the reward and the other for training. Repeating the answer does not
make the text between the two copies part of the work.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from grpo_guard.content.answers import Answer, boxed, hashed, tagged
from grpo_guard.content.screens.view import WORDS, Screen, View, shown
from grpo_guard.content.severity import CONFIRM_OR_REJECT, REJECT, REPORT
from grpo_guard.core.verdict import Finding

# Maximum share of the words after the answer that can be off the subject.
_OFF_SUBJECT = 0.4
# Words without content: a sentence that consists only of these says nothing, and proves no link to
# the question.
_EMPTY = WORDS["empty"]
# Chat models close with an offer of help; most use one of these, in whatever language.
_POLITE = re.compile(
    r"let me know|feel free|\bhope\b|questions?\b|happy to|if you(?:'d|’d)? (?:would|need|have|want"
    r"|like|found)|just ask|good luck|enjoy|glad to|welcome|happy \w{3,12}ing"
    r"|\bfragen?\b|gerne|hoffe|viel erfolg|pregunt|ayud|espero|dud[ae]s|hésite|n'hésite|aide|espère"
    r"|bon courage|вопрос|помо|надеюсь|удачи|问题|帮助|希望|随时|質問|遠慮|お役|질문|도움"
    r"|pergunt|dúvida|ajud|domand|aiut|spero|سؤال|أسئلة|مساعد|سوال|प्रश्न|सवाल|मदद|pytani|pomóc|vragen|soru",
    re.IGNORECASE,
)
_BARE = 2  # too few words for a sentence: "9</answer>8</answer>"
_LONGEST_OFFER, _MOST_OFFERS, _LONGEST_LEAD = 30, 3, 30
# Chinese and Japanese put no spaces between words.
_HAN = "\u3040-\u30ff\u3400-\u9fff"
_WORD = re.compile(rf"[{_HAN}]|[^\W_{_HAN}]+")
_STEMS = re.compile(rf"(?=([{_HAN}]{{2}}))|(?<![^\W_])([^\W\d_{_HAN}]{{4,}})")
_STEM = 4
_SENTENCE = re.compile(r"[^.!?。！？؟\n]+[.!?。！？؟]{0,3}")
_DIGIT = re.compile(r"\d")
# Closing a formula, a block, a thought or a turn is not text.
_CLOSERS = re.compile(
    r"\\(?:end|begin)\{[A-Za-z]{1,20}\*?\}|\\(?:hfill|blacksquare|square|qed|text)\b"
    r"|</?[a-z_:]{1,24}>|<[|｜][^<>|｜\s]{1,40}[|｜]>|[◁\[]/?(?:think|THINK)[▷\]]"
)
_LOOSE = re.compile(r"\\boxed|[\s,$€£%\\{}.]+")


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """The form in which a task writes its final answer.

    Args:
        name: Name of the format, shown in messages.
        gate: A substring of every such answer, as a cheap first check.
        find: Yields all answers in a text, in order and in linear time.
        closing_words: Maximum number of words that can follow the answer on the same line (a unit).
        joined: Whether models also write this format around intermediate results. Several different
            answers are then honest (roots, parts, corrections), and text after them is reported as
            ``after_box``, which rejects nothing by default.
    """

    name: str
    gate: str
    find: Callable[[str], Iterator[Answer]]
    closing_words: int = 0
    joined: bool = False

    @classmethod
    def of_pattern(
        cls, name: str, gate: str, pattern: str, *, closing_words: int = 0
    ) -> "AnswerFormat":
        """Make a format from a regular expression whose group 1 is the answer.

        Raises:
            ValueError: the pattern has no group.
        """
        compiled = re.compile(pattern)
        if compiled.groups < 1:
            raise ValueError(f"pattern: expected one with a group, got {pattern!r}")
        # Not a local function, because verifiers are pickled for worker processes.
        return cls(name, gate, partial(_groups, compiled), closing_words)


def _groups(pattern: re.Pattern[str], text: str) -> Iterator[Answer]:
    for match in pattern.finditer(text):
        yield Answer(match[1] or "", *match.span())


TAGGED = AnswerFormat("<answer>", "<", tagged)
BOXED = AnswerFormat("\\boxed", "\\boxed", boxed, closing_words=8, joined=True)
HASHED = AnswerFormat("####", "####", hashed, closing_words=3)
FORMATS = (TAGGED, BOXED, HASHED)


class AnswerScreen:
    """The screens for answers, covering all formats of a task.

    Args:
        formats: Formats to look for in every text; each format that does not occur costs one
            substring search.
    """

    def __init__(self, formats: tuple[AnswerFormat, ...]) -> None:
        self.formats = formats

    @property
    def screens(self) -> tuple[Screen, ...]:
        return (
            # Honest: a remark.
            Screen("after_answer", CONFIRM_OR_REJECT, partial(self._after, "after_answer", False)),
            # After a box, chat models continue as they please.
            Screen("after_box", REPORT, partial(self._after, "after_box", True)),
            # A reader model would find each of them plausible.
            Screen("several_answers", REJECT, self.several_answers),
        )

    def _after(self, kind: str, joined: bool, view: View) -> Iterator[Finding]:
        """Yield findings for text after the first answer, other than a unit, a summary or an offer
        of help, in formats that models do or do not also put around intermediate results."""
        found = self._found(view)
        for form, answers in found:
            if form.joined is not joined:
                continue
            start = answers[0].end
            # A model that was trained to box its answers boxes the one in the tag again.
            copies = [
                answer
                for other, theirs in found
                for answer in theirs
                if other is not form and _repeats(answer, answers)
            ]
            # The sentence that leads to such a box has no other number, and one next to it may be
            # foreign: the text is off the subject if it is with the box and without.
            rest = _text_after(sorted([*answers, *copies], key=_start), view.prose)
            whole = _text_after(answers, view.prose)
            if rest and all(_is_off_topic(form, text, start, view) for text in (rest, whole)):
                message = f"text after the answer ({form.name}): {shown(rest.strip()[:80])}"
                tail = view.text[start:]
                place = (start + len(tail) - len(tail.lstrip()), len(view.text.rstrip()))
                yield Finding(kind, message, char_span=place)

    def several_answers(self, view: View) -> Iterator[Finding]:
        """Yield a finding for each format with differing answers."""
        for form, answers in self._found(view):
            for before, after in pairwise(answers):
                if form.joined or _same(before.content, after.content):
                    continue
                message = (
                    f"answers that differ ({form.name}): {shown(before.content)} and "
                    f"{shown(after.content)}"
                )
                yield Finding("several_answers", message, char_span=(after.start, after.end))
                break

    def _found(self, view: View) -> list[tuple[AnswerFormat, list[Answer]]]:
        """Return the formats found in the text, with their answers, skipping blank answers."""
        if self not in view.notes:
            found = [
                (form, [answer for answer in form.find(view.text) if answer.content.strip()])
                for form in self.formats
                if form.gate in view.text
            ]
            view.notes[self] = [(form, answers) for form, answers in found if answers]
        noted: list[tuple[AnswerFormat, list[Answer]]] = view.notes[self]
        return noted


def _start(answer: Answer) -> int:
    return answer.start


def _repeats(answer: Answer, answers: list[Answer]) -> bool:
    """Whether an answer in another format repeats the first of these, outside all of them."""
    inside = any(one.start <= answer.start < one.end for one in answers)
    first = answers[0]
    return not inside and answer.start >= first.end and _same(answer.content, first.content)


def _text_after(answers: list[Answer], text: str) -> str:
    """Return the text after the first answer, minus later answers; repeated pieces count once."""
    ends = [answer.start for answer in answers[1:]] + [len(text)]
    gaps = dict.fromkeys(
        text[answer.end : end].strip(" ")
        for answer, end in zip(answers, ends, strict=True)
        if end > answer.end
    )
    return _CLOSERS.sub(" ", "\n".join(gaps).strip("\n")) if any(gaps) else ""


def _is_off_topic(form: AnswerFormat, rest: str, start: int, view: View) -> bool:
    head, _, tail = rest.partition("\n")
    limit = form.closing_words
    words = len(_WORD.findall(head))
    if words <= limit and not _WORD.search(tail):
        # Long runs of symbols such as "####" or "!!!!" contain no words, yet belong to no answer.
        return len(rest.strip()) > 8 + 16 * max(limit, words)
    # Models continue after their answer: they check it, or write a program. A sentence with a
    # number, or with a word from the question or from the work before it, is taken for such work.
    # So poison on the question's subject passes here.
    subject = _stems(f"{view.prompt}\n{view.text[:start]}")
    off, total, offers = 0, 0, 0
    if view.prose is not view.text:
        total = len(_WORD.findall(view.text)) - len(_WORD.findall(view.prose))  # words in code
    for sentence in dict.fromkeys(_SENTENCE.findall(rest)):
        words = len(found := _WORD.findall(sentence))
        total += words
        works = _DIGIT.search(sentence) or not subject.isdisjoint(_stems(sentence))
        if works and words > _BARE:
            continue
        if words <= _LONGEST_OFFER and offers < _MOST_OFFERS and _is_offer(sentence):
            offers += 1
        elif words > _LONGEST_LEAD or not _EMPTY.issuperset(map(str.lower, found)):
            off += words
    return off > limit and off > _OFF_SUBJECT * total


def _is_offer(sentence: str) -> bool:
    """Whether a sentence offers help or asks the reader something, as chat models do at the end."""
    return sentence.rstrip().endswith(("?", "？", "؟")) or _POLITE.search(sentence) is not None


def _stems(text: str) -> frozenset[str]:
    """Return the stems of content words; "apples" and "apple" share a stem."""
    return frozenset(
        pair or word[:_STEM]
        for pair, word in _STEMS.findall(text[:100_000].lower())
        if pair or word not in _EMPTY
    )


def _same(one: str, other: str) -> bool:
    return one == other or _LOOSE.sub("", one).casefold() == _LOOSE.sub("", other).casefold()
