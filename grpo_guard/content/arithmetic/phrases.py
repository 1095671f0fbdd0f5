"""Set phrases that calculate: "half of 50 is 25", "adding 6 and 7 gives 13", "7 squared is 49".

As uncertain as all arithmetic in words, and read only where nothing else belongs to the phrase.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Final

from grpo_guard.content.arithmetic.equation import Equation
from grpo_guard.content.arithmetic.expression import divide
from grpo_guard.content.arithmetic.notation import Rational, magnitude, number
from grpo_guard.content.arithmetic.rounding import rounds_to

_NUMBER: Final = r"\$?([0-9](?:[0-9,]{0,14}[0-9])?(?:\.[0-9]{1,6})?)"
_SAYS: Final = (
    r",?[ ](?:=|is equal to|is|are|equals|gives(?: us| you)?|makes|results in|to get|we get|"
    rf"you get)[ ]{_NUMBER}(?![\w%/:^*+-]|[.,][0-9]| ?[-+*/x^(] ?[0-9(]|[ ](?:more|less|fewer|"
    r"times|percent|out|of|and|dozen|hundred|thousand|million|[0-9]))"
)
_FACTORS: Final[dict[str, Rational]] = {
    "half of": Fraction(1, 2), "one half of": Fraction(1, 2), "a third of": Fraction(1, 3),
    "one third of": Fraction(1, 3), "a quarter of": Fraction(1, 4), "one fourth of": Fraction(1, 4),
    "one quarter of": Fraction(1, 4), "a fourth of": Fraction(1, 4), "a fifth of": Fraction(1, 5),
    "a tenth of": Fraction(1, 10), "twice": 2, "double": 2, "triple": 3, "thrice": 3,
}  # fmt: skip
_VERBS: Final = {
    "sum of": "+", "total of": "+", "product of": "*", "difference between": "difference",
    "difference of": "difference", "adding": "+", "add": "+", "multiplying": "*", "multiply": "*",
    "dividing": "/", "divide": "/", "subtracting": "-", "subtract": "-",
}  # fmt: skip
_JOINTS: Final = {
    "+": ("and", "to"), "*": ("and", "by"), "difference": ("and",), "/": ("by",), "-": ("from",),
}  # fmt: skip
_POWERS: Final = {"squared": 2, "cubed": 3}
_PHRASE: Final = re.compile(
    rf"(?<!\w)(?:(?P<factor>{'|'.join(_FACTORS)}) {_NUMBER}"
    rf"|(?P<verb>{'|'.join(_VERBS)}) {_NUMBER} (?P<joint>and|to|by|from) {_NUMBER}){_SAYS}"
)
_POWER: Final = re.compile(rf"(?<![\w.,]){_NUMBER} (?P<power>squared|cubed){_SAYS}")
_LONGEST_NUMBER: Final = 25
_REACH: Final = 100  # a phrase is shorter, and a search without an end would be quadratic
# The words by their last letters: a text is searched for few and short things.
_ENDINGS: Final = {
    ending: [f"{word} " for word in (*_FACTORS, *_VERBS) if f"{word} ".endswith(ending)]
    for ending in (" of ", "ice ", "ble ", "ple ", "een ", "ing ", "add ", "ply ", "ide ", "act ")
}
NUMBERS_AS_0: Final = str.maketrans("123456789$", "0" * 10)
# One look for all of them.
_ENDED: Final = re.compile(rf" 0(?<={'|'.join(f'{ending}0' for ending in _ENDINGS)})")
# In the same clause before the phrase, these and digits may make it a part of something larger.
_LARGER: Final = re.compile(r"[0-9]|\b(?:of|and|plus|minus|times|than|by|to|from|root|half)\b")
_CLAUSE: Final = re.compile(r"[^.,;:!?\n()]{0,80}\Z")


def phrases(text: str, small: str, plain: str) -> Iterator[Equation]:
    """Statements in set phrases, right or wrong; linear time.

    Args:
        text: As written.
        small: Folded and in small letters.
        plain: The same with `NUMBERS_AS_0`, in which a number begins with 0.
    """
    for ending, words in _ENDINGS.items() if _ENDED.search(plain) else ():
        for at in _places(plain, f"{ending}0"):
            for word in words:
                begin = at + len(ending) - len(word)
                if begin >= 0 and small.startswith(word, begin):
                    statement = _read(text, small, _PHRASE.match(small, begin))
                    if statement is not None:
                        yield statement
    for word in _POWERS:
        for at in _places(small, f" {word}"):
            match = _POWER.search(small, max(0, at - _LONGEST_NUMBER), at + _REACH)
            statement = _read(text, small, match)
            if statement is not None:
                yield statement


def _places(text: str, wanted: str) -> Iterator[int]:
    at = text.find(wanted)
    while at >= 0:
        yield at
        at = text.find(wanted, at + 1)


def _read(text: str, small: str, match: re.Match[str] | None) -> Equation | None:
    if match is None:
        return None
    before = _CLAUSE.search(small[max(0, match.start() - 80) : match.start()])
    if before is not None and _LARGER.search(before.group()):
        return None
    read = [number(piece) for piece in match.groups() if piece and piece[0].isdigit()]
    values = [value for value in read if value is not None]
    exact = _value(match, [value for value, _ in values[:-1]]) if None not in read else None
    if exact is None:
        return None
    stated, decimals = values[-1]
    last = match.lastindex or 0
    return Equation(
        text[match.start() : match.start(last)][:200],
        exact,
        stated,
        match.span(last),
        (match.start(), match.end(last)),
        rounds_to(exact, stated, decimals),
    )


def _value(match: re.Match[str], values: list[Rational]) -> Rational | None:
    """What the phrase comes to; None if its words do not fit together."""
    named = match.groupdict()
    if "power" in named:
        return values[0] ** _POWERS[named["power"]]
    if named["factor"]:
        return values[0] * _FACTORS[named["factor"]]
    operator, (first, second) = _VERBS[named["verb"]], values
    if named["joint"] not in _JOINTS[operator]:
        return None
    if operator == "/":
        return divide(first, second) if second else None
    if operator == "difference":
        return magnitude(first - second)
    return {"+": first + second, "*": first * second, "-": second - first}[operator]
