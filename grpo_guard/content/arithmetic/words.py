"""Arithmetic in words: "two plus two is five", "the sum of 2 and 2 is 5", "half of 50 is 26".

Words are put into signs, place by place, and what the reader of equations then finds in the changed
places is a statement in words. Less certain than signs ("two boys and three girls make ten cakes"
states no sum), hence kept apart from the equations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from grpo_guard.content.arithmetic.characters import fold
from grpo_guard.content.arithmetic.equation import Equation
from grpo_guard.content.arithmetic.equations import equations

_UP_TO_19: Final = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
).split()
_TENS: Final = "twenty thirty forty fifty sixty seventy eighty ninety".split()
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
    """``a`` and ``b`` of a phrase with a sign between them, and blanks for its words."""

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


def _put(formula: str) -> Rewrite:
    """A formula in place of a phrase that is at least as long."""
    return lambda match: formula.ljust(len(match.group()))


def _pair(opening: str, joint: str) -> re.Pattern[str]:
    return re.compile(
        rf"(?<!\w){opening}[ ]+(?P<a>{_NUMBER}){_UNIT}[ ]+(?P<joint>{joint})[ ]+"
        rf"(?P<b>{_NUMBER}){_UNIT}{_SAYS}",
        re.IGNORECASE,
    )


_PHRASES: Final[tuple[tuple[re.Pattern[str], Rewrite], ...]] = (
    (_pair("(?:the )?sum of", "and"), _signed("+")),
    (_pair("(?:the )?product of", "and"), _signed("*")),
    (_pair("(?:the )?difference between", "and"), _signed("-")),
    (_pair("add(?:ing)?", "and|to"), _signed("+")),
    (_pair("multiply(?:ing)?", "by|and|with"), _signed("*")),
    (_pair("divid(?:e|ing)", "by"), _signed("/")),
    (_pair("subtract(?:ing)?", "from"), _signed("+", "-")),
    (
        re.compile(
            rf"(?P<a>{_NUMBER})(?:[ ]+[a-z]{{2,15}}){{0,2}}?[ ]+(?P<joint>and)[ ]+(?P<b>{_NUMBER})"
            r"(?=(?:[ ]+[a-z]{2,15}){0,2}?[ ]+(?:makes?|gives?|equals?|totals?)\b)",
            re.IGNORECASE,
        ),
        lambda match: match.group().replace("and", "+  "),
    ),
    (re.compile(r"(?<!\w)half of(?= \$?[0-9])", re.IGNORECASE), _put("1/2 of")),
    (re.compile(r"(?<!\w)(?:1|a)[ ]+third of(?= \$?[0-9])", re.IGNORECASE), _put("1/3 of")),
    (re.compile(r"(?<!\w)(?:1|a)[ ]+quarter of(?= \$?[0-9])", re.IGNORECASE), _put("1/4 of")),
    (re.compile(r"(?<!\w)(?:twice|double)(?= \$?[0-9])", re.IGNORECASE), _put("2 *")),
    (re.compile(r"(?<!\w)(?:triple)(?= \$?[0-9])", re.IGNORECASE), _put("3 *")),
    (re.compile(r"(?<=[0-9])[ ]squared(?!\w)", re.IGNORECASE), _put("^2")),
    (re.compile(r"(?<=[0-9])[ ]cubed(?!\w)", re.IGNORECASE), _put("^3")),
)
_ANY: Final = re.compile(
    rf"{_NUMERAL.pattern.replace('?P<tens>', '?:').replace('?P<ones>', '?:').replace('?P<one>', '?:')}"
    r"|(?<!\w)(?:sum|product|difference|add|adding|multiply|multiplying|divide|dividing|subtract"
    r"|subtracting|half|third|quarter|twice|double|triple|squared|cubed)(?!\w)|[0-9] [a-z ]{0,20}and ",
    re.IGNORECASE,
)
_SAID: Final = re.compile(r"=|(?<!\w)(?:is|are|makes?|gives?|equals?|totals?|get)(?!\w)")


def statements(text: str, found: Sequence[Equation]) -> list[Equation]:
    """Statements in words, right or wrong; those that ``found`` holds already are not.

    Args:
        text: The completion; linear time.
        found: What was already read as equations.
    """
    folded = fold(text)
    lines = []
    for line in folded.split("\n"):
        said = _ANY.search(line) is not None and _SAID.search(line) is not None
        lines.append(_in_signs(line) if said else " " * len(line))
    changed = "\n".join(lines)
    if changed.isspace() or not changed:
        return []
    known = {equation.span for equation in found}
    return [
        equation
        for equation in equations(changed)
        if equation.span not in known and not equation.doubt and _differs(folded, changed, equation)
    ]


def _in_signs(line: str) -> str:
    line = _NUMERAL.sub(_digits, line)
    for phrase, rewrite in _PHRASES:
        line = phrase.sub(rewrite, line)
    return line


def _digits(match: re.Match[str]) -> str:
    if match["one"]:
        value = _VALUES[match["one"].lower()]
    else:
        value = _VALUES[match["tens"].lower()] + _VALUES[match["ones"].lower()]
    return str(value).ljust(len(match.group()))


def _differs(folded: str, changed: str, equation: Equation) -> bool:
    start, end = equation.extent
    return folded[start:end] != changed[start:end]
