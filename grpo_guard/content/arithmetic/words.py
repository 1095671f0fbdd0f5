"""Arithmetic in words: "two plus two is five", "the sum of 2 and 2 is 5", "half of 50 is 26".

Words are replaced with signs of the same length, and any equations then found in the changed places
are statements in words. Such statements are less certain than equations in signs ("two boys and
three girls make ten cakes" states no sum), so they are kept separate.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from grpo_guard.content.arithmetic.characters import fold, lowered
from grpo_guard.content.arithmetic.equation import Equation
from grpo_guard.content.arithmetic.equations import equations
from grpo_guard.content.word_set import word_set

_UP_TO_19: Final = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS: Final = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_VALUES: Final = {name: value for value, name in enumerate(_UP_TO_19)} | {
    name: 20 + 10 * at for at, name in enumerate(_TENS)
}
_ONES: Final = "|".join(_UP_TO_19[1:10])
_NUMERAL: Final = re.compile(
    rf"(?<![\w-])(?:(?P<tens>{'|'.join(_TENS)})[- ](?P<ones>{_ONES})"
    rf"|(?P<one>{'|'.join([*_UP_TO_19, *_TENS])}))(?![\w-])",
    re.IGNORECASE,
)
_NUMBER: Final = r"\$?[0-9][0-9.,]{0,20}(?<![.,])"
_UNIT: Final = r"(?:[ ]+[a-z]{2,15}){0,2}?"
_SAYS: Final = r"(?=[ ]*,?[ ]*(?:=|is|are|makes?|gives?|equals?|totals?|we get|to get)\b|[ ]*=)"

Rewrite = Callable[["re.Match[str]"], str]


def _signed(sign: str, before: str = " ") -> Rewrite:
    """Return a rule that keeps the groups ``a`` and ``b`` of a phrase, with a sign in between."""

    def rewrite(match: re.Match[str]) -> str:
        text, at = list(" " * len(match.group())), match.start()
        for name in ("a", "b"):
            start, end = match.span(name)
            text[start - at : end - at] = match[name]
        joint = match.start("joint") - at
        text[joint] = sign
        if before != " ":
            text[match.start("a") - at - 2] = before
        return "".join(text)

    return rewrite


def _replaced_by(formula: str) -> Rewrite:
    """Return a rule that replaces a phrase with a formula, which must not be longer."""
    return lambda match: formula.ljust(len(match.group()))


def _counted(words: str, formula: str) -> tuple[re.Pattern[str], Rewrite]:
    """Return a pattern for words before a number, and a rule to replace them with a formula."""
    return re.compile(rf"(?<!\w){words}(?= \$?[0-9])", re.IGNORECASE), _replaced_by(formula)


def _pair(opening: str, joint: str) -> re.Pattern[str]:
    return re.compile(
        rf"(?<!\w){opening}[ ]+(?P<a>{_NUMBER}){_UNIT}[ ]+(?P<joint>{joint})[ ]+"
        rf"(?P<b>{_NUMBER}){_UNIT}{_SAYS}",
        re.IGNORECASE,
    )


# Each phrase comes with a word that it contains, so that most phrases can be skipped for a line.
_PHRASES: Final[tuple[tuple[str, re.Pattern[str], Rewrite], ...]] = (
    ("sum", _pair("(?:the )?sum of", "and"), _signed("+")),
    ("product", _pair("(?:the )?product of", "and"), _signed("*")),
    ("difference", _pair("(?:the )?difference between", "and"), _signed("-")),
    ("add", _pair("add(?:ing)?", "and|to"), _signed("+")),
    ("multiply", _pair("multiply(?:ing)?", "by|and|with"), _signed("*")),
    ("divid", _pair("divid(?:e|ing)", "by"), _signed("/")),
    ("subtract", _pair("subtract(?:ing)?", "from"), _signed("+", "-")),
    (
        "and",
        re.compile(
            rf"(?P<a>{_NUMBER})(?:[ ]+[a-z]{{2,15}}){{0,2}}?[ ]+(?P<joint>and)[ ]+(?P<b>{_NUMBER})"
            r"(?=(?:[ ]+[a-z]{2,15}){0,2}?[ ]+(?:makes?|gives?|equals?|totals?)\b)",
            re.IGNORECASE,
        ),
        lambda match: match.group().replace("and", "+  "),
    ),
    ("half", *_counted("half of", "1/2 of")),
    ("third", *_counted("(?:1|a)[ ]+third of", "1/3 of")),
    ("quarter", *_counted("(?:1|a)[ ]+quarter of", "1/4 of")),
    ("twice", *_counted("twice", "2 *")),
    ("double", *_counted("double", "2 *")),
    ("triple", *_counted("triple", "3 *")),
    ("get", *_counted("(?:to|we) get", "=")),
    ("squared", re.compile(r"(?<=[0-9])[ ]squared(?!\w)", re.IGNORECASE), _replaced_by("^2")),
    ("cubed", re.compile(r"(?<=[0-9])[ ]cubed(?!\w)", re.IGNORECASE), _replaced_by("^3")),
)
_WORD: Final = "|".join([*_UP_TO_19, *_TENS])
_JOINED: Final = re.compile(
    rf"(?<![a-z])(?:(?:{_WORD})(?![a-z])|[0-9])(?: [a-z]{{2,15}}){{0,2}}?,? "
    rf"(?:plus|minus|times|and|divided by|multiplied by|by|from|to|[-+*/=x]|is|equals|make) "
    rf"\$?(?:(?:{_WORD})(?![a-z])|[0-9])"
    r"|(?<![a-z])(?:half of|third of|quarter of|twice|double|triple) |[0-9] (?:squared|cubed)"
)
_LETTERS: Final = re.compile("[a-z]++")
_LETTERS_ONLY: Final = bytes(b if 97 <= b <= 122 or b == 10 else 32 for b in range(256))
_CALCULATING: Final = word_set(
    "sum product difference add adding multiply multiplying divide dividing subtract subtracting "
    "half third quarter twice double triple squared cubed"
).union(_VALUES)
# Words that make "3 and 4" a sum.
_TOGETHER: Final = word_set("make makes give gives equal equals total totals get")
_CLAUSE_END: Final = re.compile(r"[.,;:](?=\s)")
_STATING_WORD: Final = re.compile(r"=|(?<!\w)(?:is|are|makes?|gives?|equals?|totals?|get)(?!\w)")


def statements(text: str, found: Sequence[Equation]) -> list[Equation]:
    """Return the statements in words, right or wrong, that are not already in ``found``.

    Args:
        text: The completion, which is searched in linear time.
        found: The equations already found in the completion.
    """
    folded = fold(text)
    small = lowered(folded)
    candidates = list(_lines_with_statements(small))
    if not candidates:
        return []
    lines = folded.split("\n")
    blank = [" " * len(line) for line in lines]
    for at in candidates:
        blank[at] = _in_signs(lines[at])
    changed = "\n".join(blank)
    if changed.isspace():
        return []
    known = {equation.span for equation in found}
    return [
        equation._replace(span=_whole_word(folded, equation.span))
        for equation in equations(changed, everywhere=True)
        if equation.span not in known and not equation.doubt and _differs(folded, changed, equation)
    ]


def _lines_with_statements(small: str) -> Iterator[int]:
    """Yield the indices of lines (in lower case) that could state a calculation in words."""
    lines = small.split("\n")
    # Keep only words of ASCII letters, for all lines at once.
    worded = small.encode("ascii", "replace").translate(_LETTERS_ONLY).decode().split("\n")
    for at, words in enumerate(map(str.split, worded)):
        if _calculates(words) and _JOINED.search(lines[at]) and _STATING_WORD.search(lines[at]):
            yield at


def _calculates(words: list[str]) -> bool:
    if _CALCULATING.isdisjoint(words):
        return "and" in words and not _TOGETHER.isdisjoint(words)
    return True


def _whole_word(folded: str, span: tuple[int, int]) -> tuple[int, int]:
    start, end = span
    while end < len(folded) and folded[start].isalpha() and folded[end].isalpha():
        end += 1
    return start, end


def _in_signs(line: str) -> str:
    """Replace the words of a line with signs, and blank out any clauses left unchanged.

    An unchanged clause states nothing in words, and no side of an equation crosses the end of a
    clause.
    """
    small = line.lower()
    spelt = not _VALUES.keys().isdisjoint(_LETTERS.findall(small))
    changed = _NUMERAL.sub(_digits, line) if spelt else line
    for word, phrase, rewrite in _PHRASES:
        if word in small:
            changed = phrase.sub(rewrite, changed)
    if changed == line:
        return " " * len(line)
    pieces, begin = [], 0
    for end in (*(mark.start() for mark in _CLAUSE_END.finditer(changed)), len(line)):
        piece = changed[begin:end]
        pieces.append(piece if piece != line[begin:end] else piece[:1] + " " * (len(piece) - 1))
        begin = end
    return "".join(pieces)


def _digits(match: re.Match[str]) -> str:
    if match["one"]:
        value = _VALUES[match["one"].lower()]
    else:
        value = _VALUES[match["tens"].lower()] + _VALUES[match["ones"].lower()]
    return str(value).ljust(len(match.group()))


def _differs(folded: str, changed: str, equation: Equation) -> bool:
    start, end = equation.extent
    return folded[start:end] != changed[start:end]
