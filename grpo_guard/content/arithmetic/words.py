"""Arithmetic in words: "two plus two is five", "the sum of 2 and 2 is 5", "half of 50 is 26".

Words are replaced with signs of the same length, and any equations then found in the changed places
are statements in words. Such statements are less certain than equations in signs ("two boys and
three girls make ten cakes" states no sum), so they are kept separate.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from grpo_guard.content.arithmetic.characters import fold, lowered
from grpo_guard.content.arithmetic.equation import Equation
from grpo_guard.content.arithmetic.equations import equations
from grpo_guard.content.arithmetic.wordings import MULTIPLES, PARTS, PHRASES
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
_WORD: Final = "|".join([*_UP_TO_19, *_TENS])
_JOINED: Final = re.compile(
    rf"(?<![a-z])(?:(?:{_WORD})(?![a-z])|[0-9])(?: [a-z]{{2,15}}){{0,2}}?,? "
    r"(?:plus|minus|times|and|divided by|multiplied by|by|from|to|[-+*/=x]|is|are|equals?|make"
    r"|than) "
    rf"\$?(?:(?:{_WORD})(?![a-z])|[0-9])"
    rf"|(?<![a-z])(?:(?:half|{PARTS}|square|cube|average) of|{MULTIPLES}) "
    r"|[0-9] (?:squared|cubed)"
)
_LETTERS: Final = re.compile("[a-z]++")
_LETTERS_ONLY: Final = bytes(b if 97 <= b <= 122 or b == 10 else 32 for b in range(256))
_CALCULATING: Final = word_set(
    "sum product difference average add adding multiply multiplying divide dividing subtract "
    "subtracting summing combining putting take taking deduct deducting half third quarter fifth "
    "sixth seventh eighth ninth tenth thirds quarters fifths sixths sevenths eighths ninths tenths "
    "twice thrice double triple doubling tripling halving quadrupling square cube squared cubed"
).union(_VALUES)
# Two of these in a line can state a conversion: "3 hours is 180 minutes".
_MEASURES: Final = word_set(
    "second seconds minute minutes hour hours inch inches foot feet yard yards mile miles meter "
    "meters metre metres centimeter centimeters centimetre centimetres kilometer kilometers "
    "kilometre kilometres cm km gram grams kilogram kilograms kg ounce ounces pound pounds ton "
    "tons liter liters litre litres cup cups pint pints quart quarts gallon gallons ml cent cents "
    "dime dimes nickel nickels quarter quarters dollar dollars"
)
# Words that make "3 and 4" a sum.
_TOGETHER: Final = word_set("make makes give gives equal equals total totals get")
_CLAUSE_END: Final = re.compile(r"[.,;:](?=\s)")
_STATING_WORD: Final = re.compile(
    r"=|(?<!\w)(?:is|are|makes?|gives?|equals?|totals?|get|leaves?|yields?|produces?|results|comes)"
    r"(?!\w)"
)


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
    if not _CALCULATING.isdisjoint(words):
        return True
    if "and" in words and not _TOGETHER.isdisjoint(words):
        return True
    if "than" in words and ("more" in words or "less" in words):
        return True
    return len(_MEASURES.intersection(words)) > 1


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
    for words, phrase, rewrite in PHRASES:
        if any(word in small for word in words):
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
