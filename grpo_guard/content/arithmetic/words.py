"""Arithmetic in words: "two cows and two pigs make five animals", "two plus two is five".

Less certain than signs ("two boys and three girls make ten cakes" states no sum), hence kept apart
from the equations. Sentences are read one at a time, each word once; set phrases ("half of 50 is
25", "7 squared is 49") only where nothing else belongs to them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from grpo_guard.content.arithmetic.characters import fold, lowered
from grpo_guard.content.arithmetic.equation import Equation
from grpo_guard.content.arithmetic.expression import divide
from grpo_guard.content.arithmetic.notation import Rational, magnitude, number, vocabulary
from grpo_guard.content.arithmetic.rounding import rounds_to

_UP_TO_19: Final = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_SMALL: Final = {name: value for value, name in enumerate(_UP_TO_19)}
_TENS: Final = {
    "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80,
    "ninety": 90,
}  # fmt: skip
_LARGE: Final = {"hundred": 100, "thousand": 1000, "million": 10**6}
_OPERATORS: Final = {
    "plus": "+", "and": "+", "minus": "-", "times": "*", "multiplied": "*", "divided": "/",
    "+": "+", "-": "-", "*": "*", "/": "/", ",": "+",
}  # fmt: skip
# Between numbers joined by "and", only these say that a sum follows; "is" may say anything.
_SUMMING: Final = vocabulary("make makes equal equals give gives total totals =")
_SAYING: Final = _SUMMING | {"is", "are"}
_PASSED: Final = vocabulary("a the of total exactly up to in by altogether us you")
_BARRING: Final = vocabulary(
    "each per every percent than from at half twice double of to between or with for"
)
_WORD: Final = re.compile(r"[A-Za-z]++|[0-9]++(?:[.,][0-9]++)*+|[-+*/=,]")
_SENTENCE: Final = re.compile(r"[^.;:!?\n]++(?:\.[0-9][^.;:!?\n]*+)*+")
_NUMERAL: Final = "|".join((*_SMALL, *_TENS, *_LARGE))
_NUMERALS: Final = frozenset(_SMALL) | frozenset(_TENS) | frozenset(_LARGE)
_NUMERAL_WORD: Final = re.compile(rf"(?<![a-z])(?:{_NUMERAL})(?![a-z])")
_JOINED: Final = re.compile(
    rf" (?:(?:plus|minus|times|and|by) (?:[0-9]|(?:{_NUMERAL})(?!\w))|[-+*/] |(?<== )[a-z])"
)
_SAID: Final = re.compile(
    r"(?:make|makes|equal|equals|give|gives|total|totals|is|are|=)[ ]"
    rf"(?:(?:{'|'.join(sorted(_PASSED))})[ ]){{0,4}}\$?(?:[0-9]|{_NUMERAL})"
)
# Without a number in words, only these join two numbers to a statement.
_JOINTS: Final = (" and 0", " by 0", " times 0", " plus 0", " minus 0")
_LONGEST_NUMERAL: Final = 12
_MAX_UNIT_WORDS: Final = 4
_MAX_OPERANDS: Final = 30


@dataclass(slots=True)
class _Sum:
    """What has been read of a statement so far."""

    start: int
    values: list[Rational]
    operators: list[str]
    worded: bool  # something in it is not what the equations already read
    units: int = 0


def statements(text: str, found: Sequence[Equation]) -> list[Equation]:
    """Statements in words, right or wrong; those that overlap an equation of ``found`` are not.

    Args:
        text: The completion; linear time.
        found: What was already read as equations.
    """
    folded = fold(text)
    small = lowered(folded)
    plain = small.translate(_NUMBERS_AS_0)
    taken = {equation.span for equation in found}
    result = [phrase for phrase in _phrases(text, small, plain) if phrase.span not in taken]
    taken |= {phrase.span for phrase in result}
    if not (_NUMERAL_WORD.search(small) or any(joint in plain for joint in _JOINTS)):
        return result
    end = -1
    for joined in _JOINED.finditer(small):
        if joined.start() < end or not _worded(small, joined):
            continue
        start, end = _sentence(small, joined.start(), end)
        if _SAID.search(small, max(0, joined.start() - 1), end) is not None:
            read = _read(text, folded, start, end)
            result += [statement for statement in read if statement.span not in taken]
    return result


def _worded(small: str, joined: re.Match[str]) -> bool:
    """Whether a number in words stands beside the sign, if it is a sign and no word."""
    sign = joined.group().strip()
    if small[joined.start() - 1] == "=":
        following = _WORD.match(small, joined.end() - 1)
        return following is not None and following.group() in _NUMERALS
    if sign not in ("+", "-", "*", "/"):
        return True
    before = small[max(0, joined.start() - _LONGEST_NUMERAL) : joined.start()]
    return before.rpartition(" ")[2].rpartition("-")[2] in _NUMERALS


def _sentence(small: str, at: int, floor: int) -> tuple[int, int]:
    """Start and end of the sentence around ``at``, which does not begin before ``floor``."""
    start = max(floor, 0)
    for mark in ".;:!?\n":
        found = small.rfind(mark, start, at)
        while found >= 0 and mark == "." and small[found + 1].isdigit():
            found = small.rfind(mark, start, found)
        start = max(start, found + 1)
    rest = _SENTENCE.match(small, at)
    return start, rest.end() if rest is not None else at


def _read(text: str, folded: str, start: int, end: int) -> list[Equation]:
    words = [(m.group().lower(), m.start(), m.end()) for m in _WORD.finditer(folded, start, end)]
    found: list[Equation] = []
    state: _Sum | None = None
    at = 0
    while at < len(words):
        word = words[at][0]
        value, after = _numeral(words, at)
        if value is not None:
            state = _continued(state, words[at][1], value, word.isalpha())
            at = after
            continue
        at += 1
        if state is None:
            continue
        if word in _SAYING and state.operators and len(state.values) == len(state.operators) + 1:
            statement, at = _stated(text, words, at, state, word)
            found += [statement] if statement else []
            state = None
        elif word == "," and not _goes_on(words, at):
            continue
        elif word in _OPERATORS:
            if len(state.operators) == len(state.values):
                # "two, and three": one operator of two words
                state.operators[-1] = _OPERATORS[word]
            elif state.operators[-1:] and len(state.values) >= _MAX_OPERANDS:
                state = None
            else:
                state.operators.append(_OPERATORS[word])
                state.worded |= word == "and"
            if state is not None:
                state.units = 0
        elif word in _BARRING and not (word == "by" and state.operators):
            state = None
        else:
            state.units += 1
            if state.units > _MAX_UNIT_WORDS:
                state = None
    return found


def _goes_on(words: list[tuple[str, int, int]], at: int) -> bool:
    """Whether a list goes on behind a comma, rather than the sentence."""
    return at < len(words) and (words[at][0] == "and" or _numeral(words, at)[0] is not None)


def _continued(state: _Sum | None, start: int, value: Rational, worded: bool) -> _Sum:
    """A number continues a sum if an operator stands before it, and begins one otherwise."""
    if state is None or len(state.operators) != len(state.values):
        return _Sum(start, [value], [], worded)
    state.values.append(value)
    state.worded |= worded
    state.units = 0
    return state


def _stated(
    text: str, words: list[tuple[str, int, int]], at: int, state: _Sum, verb: str
) -> tuple[Equation | None, int]:
    """The number behind the verb, compared with the sum."""
    for _ in range(4):
        if at < len(words) and words[at][0] in _PASSED:
            at += 1
    stated, after = _numeral(words, at)
    if stated is None:
        return None, at
    following = words[after][0] if after < len(words) else ""
    joined_by_and = state.worded and "+" in state.operators and verb not in _SUMMING
    said_plus = " plus " in text[state.start : words[at][1]].lower()
    said_and = state.worded and not said_plus
    worded = state.worded or words[at][0].isalpha()
    if verb == "=" and " and " in text[state.start : words[at][1]].lower():
        return None, after  # "3 apples and 4 + 5 = 9 pears"
    if not worded or (joined_by_and and not said_plus) or following in ("more", "less", "times"):
        return None, after
    exact = _value(state)
    if exact is not None and said_and and not exact <= 2 * stated <= 4 * exact:
        return None, after  # "Two dogs and three cats give 20 legs"
    if exact is None or (following in _OPERATORS and following not in ("and", ",")):
        return None, after
    span = (words[at][1], words[after - 1][2])
    left = text[state.start : words[at][1]][:200]
    return Equation(left, exact, stated, span, (state.start, span[1]), exact == stated), after


def _value(state: _Sum) -> Rational | None:
    terms: list[Rational] = [state.values[0]]
    for operator, value in zip(state.operators, state.values[1:], strict=True):
        if operator == "*":
            terms[-1] *= value
        elif operator == "/":
            if value == 0:
                return None
            terms[-1] = divide(terms[-1], value)
        else:
            terms.append(value if operator == "+" else -value)
    return sum(terms)


def _numeral(words: list[tuple[str, int, int]], at: int) -> tuple[Rational | None, int]:
    """Value of the number that begins at word ``at`` and where it ends; "twenty-five" is one."""
    if at >= len(words):
        return None, at
    word = words[at][0]
    if word[0].isdigit():
        read = number(word)
        return (read[0] if read else None), at + 1
    if word not in _SMALL and word not in _TENS:
        return None, at
    total, current = 0, 0
    begin = at
    while at < len(words) and at - begin < 12:
        word = words[at][0]
        if word in _TENS and current % 100 == 0:
            current += _TENS[word]
        elif word in _SMALL and (
            current % 100 == 0 or (current % 10 == 0 and current % 100 >= 20 and _SMALL[word] < 10)
        ):
            current += _SMALL[word]
        elif word == "hundred" and 0 < current < 100:
            current *= 100
        elif word in ("thousand", "million") and current:
            total, current = total + current * _LARGE[word], 0
        elif word == "-" and _is_hyphen(words, at):
            pass
        else:
            break
        at += 1
    return total + current, at


def _is_hyphen(words: list[tuple[str, int, int]], at: int) -> bool:
    if at + 1 >= len(words) or words[at - 1][0] not in _TENS or words[at + 1][0] not in _SMALL:
        return False
    return words[at - 1][2] == words[at][1] and words[at][2] == words[at + 1][1]


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
_PHRASE_JOINTS: Final = {
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
_NUMBERS_AS_0: Final = str.maketrans("123456789$", "0" * 10)
# One look for all of them.
_ENDED: Final = re.compile(rf" 0(?<={'|'.join(f'{ending}0' for ending in _ENDINGS)})")
# In the same clause before the phrase, these and digits may make it a part of something larger.
_LARGER: Final = re.compile(r"[0-9]|\b(?:of|and|plus|minus|times|than|by|to|from|root|half)\b")
_CLAUSE: Final = re.compile(r"[^.,;:!?\n()]{0,80}\Z")


def _phrases(text: str, small: str, plain: str) -> Iterator[Equation]:
    """Statements in set _phrases, right or wrong; linear time.

    Args:
        text: As written.
        small: Folded and in small letters.
        plain: The same with `_NUMBERS_AS_0`, in which a number begins with 0.
    """
    for ending, words in _ENDINGS.items() if _ENDED.search(plain) else ():
        for at in _places(plain, f"{ending}0"):
            for word in words:
                begin = at + len(ending) - len(word)
                if begin >= 0 and small.startswith(word, begin):
                    statement = _read_phrase(text, small, _PHRASE.match(small, begin))
                    if statement is not None:
                        yield statement
    for word in _POWERS:
        for at in _places(small, f" {word}"):
            match = _POWER.search(small, max(0, at - _LONGEST_NUMBER), at + _REACH)
            statement = _read_phrase(text, small, match)
            if statement is not None:
                yield statement


def _places(text: str, wanted: str) -> Iterator[int]:
    at = text.find(wanted)
    while at >= 0:
        yield at
        at = text.find(wanted, at + 1)


def _read_phrase(text: str, small: str, match: re.Match[str] | None) -> Equation | None:
    if match is None:
        return None
    before = _CLAUSE.search(small[max(0, match.start() - 80) : match.start()])
    if before is not None and _LARGER.search(before.group()):
        return None
    read = [number(piece) for piece in match.groups() if piece and piece[0].isdigit()]
    values = [value for value in read if value is not None]
    exact = _phrase_value(match, [value for value, _ in values[:-1]]) if None not in read else None
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


def _phrase_value(match: re.Match[str], values: list[Rational]) -> Rational | None:
    """What the phrase comes to; None if its words do not fit together."""
    named = match.groupdict()
    if "power" in named:
        return values[0] ** _POWERS[named["power"]]
    if named["factor"]:
        return values[0] * _FACTORS[named["factor"]]
    operator, (first, second) = _VERBS[named["verb"]], values
    if named["joint"] not in _PHRASE_JOINTS[operator]:
        return None
    if operator == "/":
        return divide(first, second) if second else None
    if operator == "difference":
        return magnitude(first - second)
    return {"+": first + second, "*": first * second, "-": second - first}[operator]
