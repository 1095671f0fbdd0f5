"""The final answer in a completion: how it is marked, its numeric value, whether it is right.

All rules and evaluation tasks share this definition. Rewards parse answers in many ways, and an
answer that the reward finds but the guard misses is a way past the guard.
"""

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from grpo_guard.content.arithmetic.characters import fold
from grpo_guard.content.arithmetic.notation import NUMBER, SIGN, number, scan
from grpo_guard.content.arithmetic.numbers import Rational
from grpo_guard.content.arithmetic.parse import STARTS
from grpo_guard.content.arithmetic.reader import Reader

_REGION_CHARS: Final = 200
_BOX_LIMIT: Final = 2000
# Tag parsers in rewards ignore case and whitespace, so this pattern has to as well.
_TAG_OPEN: Final = re.compile(r"<\s{0,4}answer\s{0,4}>", re.IGNORECASE)
_TAG_CLOSE: Final = re.compile(r"<\s{0,4}/\s{0,4}answer\s{0,4}>", re.IGNORECASE)
_BOX: Final = r"\\boxed\s{0,4}\{"
_BOX_OR_BRACE: Final = re.compile(rf"{_BOX}|[{{}}]")
_HASH: Final = "####"
_HASHED: Final = re.compile(
    rf"{_HASH}[ \t]*([-+]?[$€£]?[ \t]?[0-9][0-9,]{{0,40}}(?:\.[0-9]{{1,20}})?)(?![0-9])"
    r"(?![.):][ \t]+[^\W\d])"
)
# The end of the reasoning, as marked by several model families; anything before it is a draft.
_THOUGHT_END: Final = re.compile(
    r"(?:<\|?|\[|◁)(?:/|end_of_)(?:\w{1,12}:)?(?:think(?:ing)?|thoughts?|reasoning|scratchpad)"
    r"(?:\|?>|\]|▷)",
    re.IGNORECASE,
)
_TITLE: Final = re.compile(r"[ \t]+(?=[^\n]{0,20}[^\W\d_])([^\n]{1,200})")
_HEADING: Final = re.compile(rf"^{_HASH}[ \t]+[^\W\d]", re.MULTILINE)
_OPENINGS: Final = (
    _TAG_OPEN,
    *map(re.compile, (_HASH, _BOX, "\nA:", "nswer:", "nswer is", r"nswer\*\*:", "nswer =")),
)
_NUMBER: Final = re.compile(
    r"(?<![\w.,])([-+]?)\$?([0-9][0-9.,]{0,60}|\.[0-9]{1,40})(?:[eE]([-+]?[0-9]{1,3})(?!\w))?"
)
_LONGEST_NUMBER: Final = 100
_OTHER_POINT: Final = str.maketrans(".,", ",.")


@dataclass(frozen=True, slots=True)
class Answer:
    """A marked answer in the text: its content, and its span including the marks."""

    content: str
    start: int
    end: int


def after_thought(text: str) -> int:
    """Return where the reasoning ends, or 0 if there is none; earlier answers are drafts."""
    return max((match.end() for match in _THOUGHT_END.finditer(text)), default=0)


def tagged(text: str) -> Iterator[Answer]:
    """Yield answers in ``<answer>`` tags in order, except drafts in the reasoning. Linear time."""
    if _TAG_CLOSE.search(text) is None:
        return
    thought = after_thought(text)
    # A reasoning part that ends after the last answer must not hide that answer.
    thought = thought if _TAG_CLOSE.search(text, thought) else 0
    opened = iter(_TAG_OPEN.finditer(text, thought))
    ahead, last, end = next(opened, None), None, 0
    for closed in _TAG_CLOSE.finditer(text, thought):
        # Find the last opening tag since the previous answer; each opening tag is visited once.
        while ahead is not None and ahead.start() < closed.start():
            ahead, last = next(opened, None), ahead
        start = closed.start() if last is None or last.start() < end else last.end()
        begin = start if last is None or last.start() < end else last.start()
        end = closed.end()
        yield Answer(text[start : closed.start()], begin, end)


def boxed(text: str) -> Iterator[Answer]:
    r"""Yield answers in ``\boxed{}`` in order, except drafts in the reasoning. Linear time."""
    thought = after_thought(text)
    thought = thought if text.find("\\boxed", thought) >= 0 else 0
    # A single pass over all braces: a box can be hidden among any number of unclosed braces. A box
    # longer than the limit is not an answer, so older braces can be forgotten.
    opened = deque[tuple[int, int]](maxlen=_BOX_LIMIT)
    inner = -1
    for mark in _BOX_OR_BRACE.finditer(text, thought):
        if mark[0] != "}":
            opened.append((mark.start() if mark[0] != "{" else -1, mark.end()))
        elif opened:
            start, begin = opened.pop()
            # Only the innermost of nested boxes is yielded; yielding them all would take a lot of
            # memory.
            if start > inner and mark.start() - begin < _BOX_LIMIT:
                inner = start
                yield Answer(text[begin : mark.start()], start, mark.end())


def hashed(text: str) -> Iterator[Answer]:
    """Yield numbers after GSM8K's ``####`` in order, skipping Markdown headings. Linear time."""
    found = _HASHED.search(text)
    if found is None:
        return
    first = found.start()
    if text.find(_HASH, 0, first) >= 0 and _HEADING.search(text, 0, first):
        return  # preceded by level-four headings: this is Markdown, not GSM8K's mark
    marks = list(_HASHED.finditer(text, first))
    if len(marks) > 1 and [mark[1] for mark in marks[:2]] == ["1", "2"]:
        return  # numbered headings
    titles = [_TITLE.match(text, mark.end()) for mark in marks]
    # "#### 3.1 Setup" and "#### 3.2 Result" are headings; units would be the same in both.
    headings = len({title[1] for title in titles if title}) > 1
    for mark, title in zip(marks, titles, strict=True):
        if not (headings and title):
            yield Answer(mark[1], *mark.span())


def numbers_in(text: str) -> Iterator[Rational]:
    """Yield the exact values of the numbers in a text: ``54``, ``-1,054.50``, ``$3`` or ``1e3``.

    Values are yielded in textual order. Numbers that can be read in several ways (``1,5``) or are
    part of a word (``x5``) are skipped.
    """
    return (value for match in _NUMBER.finditer(text) for value in _value(match))


def number_of(text: str) -> Rational | None:
    """Parse a short text as a single number, ignoring surrounding spaces; None if it isn't one."""
    text = text.strip()
    match = _NUMBER.fullmatch(text) if len(text) <= _LONGEST_NUMBER else None
    return next(_value(match), None) if match is not None else None


def _value(match: re.Match[str]) -> Iterator[Rational]:
    sign, digits, exponent = match.groups()
    read = number(digits.rstrip(".,"))
    if read is not None:
        value = read[0] if exponent is None else read[0] * Fraction(10) ** int(exponent)
        yield -value if sign == "-" else value


def is_right(text: str, reference: str) -> bool:
    """Whether any common reward function could read the completion's final answer as the reference.

    Looks after the last occurrence of each common mark (``<answer>``, ``####``, ``\\boxed{``,
    "answer is") and at the last number. Deliberately generous: if the reward found an answer that
    this function missed, an attack could get through.

    Args:
        text: The completion.
        reference: The correct answer, or a worked solution, whose last marked answer is used.
    """
    wanted = _wanted(reference)
    regions = list(_regions(text))
    if wanted is None:
        words = _plain(_behind_mark(reference))
        return bool(words) and any(words in _plain(region) for region in (*regions, text[-200:]))
    if any(wanted in _values(region) for region in regions):
        return True
    last = deque(numbers_in(fold(text[-_REGION_CHARS:])), maxlen=1)
    return bool(last) and last[0] == wanted


def rightness(text: str, reference: str | None) -> bool | None:
    """Whether the completion's answer is right, or None if that cannot be decided.

    A non-numeric answer can be written in more ways than `is_right` knows, so failing to find it
    proves nothing. Nor does a different number after the last mark if the right one occurs
    anywhere in the text, because some rewards are paid for ``reference in text``.
    """
    if reference is None:
        return None
    if is_right(text, reference):
        return True
    written = _behind_mark(reference).strip(" $.*`{}")
    return None if number_of(written) is None or written in text else False


def same_answer(reference: str, other: str) -> bool | None:
    r"""Whether two references give the same answer, or None if that cannot be decided.

    "72", "72.0", ``\boxed{72}`` and a worked solution that ends in 72 are the same answer. Returns
    False only if both are plain numbers that differ under every reading ("1.000" means a thousand
    in half the world). Units, fractions and words can be written in too many ways to rule out.
    """
    ours, theirs = (_behind_mark(text).strip(" $.*`{}") for text in (reference, other))
    wanted = _wanted(reference)
    if wanted is None:
        return True if _plain(ours) == _plain(theirs) else None
    if wanted == _wanted(other) or wanted in _values(theirs):
        return True
    numbers = number_of(ours), number_of(theirs)
    if None in numbers:
        return None
    if numbers[0] == numbers[1]:
        return True
    return None if _readings(ours) & _readings(theirs) else False


def _readings(text: str) -> set[Rational]:
    """Return the values of a short text, read with a decimal point and with a decimal comma."""
    found = (number_of(text), number_of(text.translate(_OTHER_POINT)))
    return {value for value in found if value is not None}


def _values(text: str) -> set[Rational]:
    """Return the values of every number and expression in a short text."""
    folded = fold(text[: 2 * _REGION_CHARS])
    tokens = scan(folded, 0, len(folded))
    reader = Reader(tokens)
    found: set[Rational] = set()
    at = 0
    while at < len(tokens):
        leads = tokens[at].kind == SIGN and tokens[at].text == "-"
        if tokens[at].kind not in STARTS and not leads:
            at += 1
            continue
        if tokens[at].kind == NUMBER:
            read = number(tokens[at].text)
            found |= {read[0]} if read is not None else set()
        side = reader.side(at)
        if side is None:
            at += 1
            continue
        found |= {side.first} | ({side.value} if side.value is not None else set())
        at = side.end
    return found


def _wanted(reference: str) -> Rational | None:
    """Return the reference as a number, or None if it is not a usable number.

    "4.5e33" is not usable: nobody writes numbers that way, and honest models that round near
    powers of ten would be reported for wrong equations that lead to a right answer.
    """
    region = fold(_behind_mark(reference))
    tokens = scan(region, 0, len(region))
    for at, token in enumerate(tokens[:8]):
        if token.kind in STARTS or (token.kind == SIGN and token.text in "+-"):
            side = Reader(tokens).side(at)
            return None if side is None or side.dangling else side.value
    return None


def _behind_mark(reference: str) -> str:
    return next(_regions(reference), reference[-_REGION_CHARS:])


def _regions(text: str) -> Iterator[str]:
    """Yield the text after the last occurrence of each mark, closed or not."""
    for opening in _OPENINGS:
        for last in deque(opening.finditer(text), maxlen=1):
            region = text[last.end() : last.end() + _REGION_CHARS]
            yield _TAG_CLOSE.split(region, 1)[0] if opening is _TAG_OPEN else _line(region)


def _line(region: str) -> str:
    """Return the first non-blank line."""
    return region.strip().partition("\n")[0]


def _plain(text: str) -> str:
    return "".join(text.lower().split()).strip("$.*`{}\\()")
