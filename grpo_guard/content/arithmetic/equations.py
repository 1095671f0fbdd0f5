"""Equations of a text, each found right, wrong, or not certain enough to say anything of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from grpo_guard.content.arithmetic import leniency, units
from grpo_guard.content.arithmetic.characters import fold
from grpo_guard.content.arithmetic.equation import Equation
from grpo_guard.content.arithmetic.expression import (
    Reading,
    Run,
    UndefinedError,
    evaluate,
    readings,
)
from grpo_guard.content.arithmetic.links import Link, links
from grpo_guard.content.arithmetic.notation import BREAK, WORDS, Rational, number, vocabulary
from grpo_guard.content.arithmetic.rounding import (
    FLOAT_DECIMALS,
    agrees,
    holds_unrounded,
    rounds_to,
    states,
)

_SEGMENT: Final = re.compile(
    r"[^\n]++(?:(?:(?<=[=+/])|(?<=[=+/] )|(?<=[^*]\*)|(?<= [*-]))\n[^\n]++"
    r"|\n[ \t&$\n]{0,20}+(?==|~|\\approx)[^\n]*+)*+"
)
# A calculation without a sign of equality needs one of these, and a verb.
_OPERATION: Final = re.compile(
    r"[-+*/xX^][ ]?+\\?+\$?+[0-9(\\]|(?i:times|plus|minus|by|of)[ ]\\?+\$?+[0-9]|\\frac|\\div"
)
_SAID: Final = re.compile(
    r"\\approx|[→>]|\\to|rrow|(?<!\w)(?i:i\.e\.|(?:equal|equals|equaled|equalled|is|are|was|were|"
    r"be|gives?|makes?|yields|totals|becomes|comes?|adds?|amounts|results|works|get|"
    r"approximately)(?!\w))"
)


def _segments(text: str) -> Iterator[tuple[int, int]]:
    """Lines that may hold an equation, with those that go on with ``=`` in the next line."""
    for match in _SEGMENT.finditer(text):
        line = match.group()
        if "=" in line or "~" in line or (_OPERATION.search(line) and _SAID.search(line)):
            yield match.span()


# Evaluations beyond the default reading in one text. Honest texts need tens; one that leaves
# thousands of equations open on purpose is read by the rules of arithmetic from there on.
MOST_READINGS: Final = 2000
MOST_WRONG: Final = 1000
_NOTE: Final = re.compile(r"<<([^<>\n]{0,300})>>")
_IN_NUMBERS: Final = frozenset("0123456789.,/")
_COPY: Final = re.compile(
    r"[ ]{0,2}\$?[ ]{0,2}([0-9][0-9.,]{0,40}+)(?![\w/*+:^%-]| ?[/*+x^-] ?[0-9(]| [0-9]{3})"
)
_OPENING: Final = vocabulary("so thus then hence therefore because since total get")


def equations(text: str) -> list[Equation]:
    """Every equation whose two sides can be read without doubt, in the order of the text.

    Linear in the length of the text. Calculator notes ``<<2+3=5>>`` are read by themselves, and so
    is the text around them, as if they were not there.
    """
    folded = fold(text)
    notes = list(_NOTE.finditer(folded)) if "<<" in folded else []
    outer = _NOTE.sub(_blanks, folded) if notes else folded
    checker = _Checker(text)
    # Notes first: they say what a rounded number in the text was rounded from.
    places = [(*note.span(1), folded) for note in notes]
    places += [(start, end, outer) for start, end in _segments(outer)]
    for start, end, source in places:
        for link in links(source, start, end):
            checker.add(link)
        if checker.wrong >= MOST_WRONG:
            break  # nothing that follows could make it better
    checker.places = {equation.span for equation in checker.found}
    for note in notes:
        checker.add_copy(checker.copied(folded, *note.span()))
    return sorted(checker.found, key=lambda equation: equation.span)


def _blanks(note: re.Match[str]) -> str:
    return " " * len(note.group())


class _Checker:
    def __init__(self, text: str) -> None:
        self.text = text
        self.found: list[Equation] = []
        # Rounded results and what they stand for: 3.33 may be used as 10/3 later.
        self.rounded: dict[Rational, Rational] = {}
        self.floats: dict[Rational, Rational] = {}  # 15: 14.999999999999998
        self.wrong = 0
        self.places: set[tuple[int, int]] = set()  # of stated results
        self.budget = MOST_READINGS
        self.calculated = False  # whether the present chain has an operator yet
        self.head: list[Rational] = []  # values of the earlier sides of the present chain

    def add(self, link: Link) -> None:
        if self.wrong >= MOST_WRONG:
            return
        if link.opens:
            self.head = []
            self.calculated = False
        left, right = link.left, link.right
        try:
            exact, stated = evaluate(left), evaluate(right)
        except UndefinedError:
            return
        if link.doubt or not self._is_statement(link, exact, stated):
            self.head = []
            return
        self.head.append(exact)
        holds = exact == stated or self._holds(link, exact, stated)
        if holds and exact != stated:
            shown = evaluate(Run(right.operands[:1]))
            self.remember(exact, shown, right.operands[0].decimals or 0)
        denied = not holds and leniency.is_denied(link, self.text)
        if holds or denied or not leniency.excused(link, exact, stated, self.text):
            self.wrong += not holds
            written = self.text[left.start : left.end][:200]
            span = right.operands[0].span if right.is_number else (right.start, right.end)
            extent = (left.start, span[1])
            self.found.append(Equation(written, exact, stated, span, extent, holds, denied))

    def remember(self, exact: Rational, shown: Rational, decimals: int) -> None:
        """Note what a rounded result stands for."""
        if len(self.rounded) < 1000:
            self.rounded[shown] = exact
            if decimals >= FLOAT_DECIMALS:
                self.floats[exact] = shown

    def _is_statement(self, link: Link, exact: Rational, stated: Rational) -> bool:
        """Not a label (``Day 1 = 3 + 4``), an assignment, a part of a whole, a date or a range."""
        left = link.left
        operators = list(left.all_operators())
        self.calculated |= bool(operators)
        if not operators:
            if self._is_turned_round(link, exact, stated):
                return True
            return self.calculated and not left.numbers_have_units(link.right)
        if operators == ["-"] and exact < 0 and "-" in self.text[left.start : left.end]:
            tight = " " not in self.text[left.start : left.end].strip()
            if tight and not link.chained and link.context:
                return False  # "weeks 1-2 = 96 - 70"
        if operators == ["-"] and link.right.operands[0].percent:
            near = exact <= 200 * stated <= 4 * exact or exact <= 2 * stated <= 4 * exact
            if not near:
                return False  # "odds of 3-1 = 25%"
        if operators == ["/"] and 0 < exact < 1 <= stated and stated.denominator == 1:
            return False  # "1/4 = 20 students"
        if operators == ["/", "/"] and left.operands[-1].value >= 1000:
            return False
        if link.verbal:
            written = self.text[left.start : left.end]
            plain = set(operators) <= {"-", "/"} and not re.search(r" [-−–/÷] |[a-z]{4}|÷", written)
            return not plain and link.right.is_number
        return True

    def _is_turned_round(self, link: Link, exact: Rational, stated: Rational) -> bool:
        """``5 = 2 + 2``, unless the number is a label, as in ``Day 5 = 2 + 2`` or a list's 1 to 9.

        A label has nothing to do with the value, a wrong result is near it.
        """
        right = link.right
        if link.chained or link.verbal or not link.left.is_number or link.left.operands[0].unit:
            return False
        if not right.operators or "/" in right.operators or right.operators[0] == "f":
            return False
        before = link.context[-1] if link.context else None
        bare = before is None or before.kind == BREAK
        if not bare and before is not None and before.kind == WORDS:
            bare = before.text.lower().rpartition(" ")[2] in _OPENING
        return bare and 0 < exact <= 2 * stated <= 4 * exact

    def _holds(self, link: Link, exact: Rational, stated: Rational) -> bool:
        left, right = link.left, link.right
        if agrees(left, right, exact, stated, link.approximate):
            return True
        # A running calculation, "2 + 3 = 5 * 2 = 10", states only the first number.
        if right.operators and self._runs_on(right, exact):
            return True
        known = (*self.head[-8:], *([self.floats[exact]] if exact in self.floats else []))
        if any(states(right, value, link.approximate) for value in known):
            return True
        for reading in readings(left, right):
            self.budget -= 1
            if self.budget < 0:
                break
            try:
                values = evaluate(left, reading), evaluate(right, reading)
            except UndefinedError:
                continue
            if agrees(left, right, *values, link.approximate):
                return True
        return holds_unrounded(left, right, self.rounded, link.approximate)

    @staticmethod
    def _runs_on(right: Run, exact: Rational) -> bool:
        first = Run(right.operands[:1])
        rounded = first.operands[0].decimals or 0
        if "f" in right.operators:  # "1/3 of $150 left"
            cut = right.operators.index("f")
            ahead = Run(right.operands[: cut + 1], right.operators[:cut])
            if exact in (evaluate(ahead), evaluate(ahead, Reading(percent="plain"))):
                return True
        return evaluate(first) == exact or (rounded > 0 and states(first, exact, False))

    def add_copy(self, copy: Equation | None) -> None:
        # Not if it is part of an equation outside the note.
        if copy is not None and copy.span not in self.places and self.wrong < MOST_WRONG:
            self.wrong += 1
            self.found.append(copy)

    @staticmethod
    def copied(folded: str, start: int, end: int) -> Equation | None:
        """``<<16-3=13>>12``: a number behind a calculator note that does not repeat its result."""
        result = folded[start + 2 : end - 2].rpartition("=")[2].strip()
        same = folded.startswith(result, end)
        if same and folded[end + len(result) : end + len(result) + 1] not in _IN_NUMBERS:
            return None
        copy = _COPY.match(folded, end)
        if copy is None or not result:
            return None
        place = (copy.start(1), copy.start(1) + len(copy[1].rstrip(".,")))
        noted, stated = number(result), number(copy[1].rstrip(".,"))
        if noted is None or stated is None or rounds_to(noted[0], *stated):
            return None
        if rounds_to(stated[0], *noted) or units.converts(
            noted[0], stated[0], folded[place[1] : place[1] + 24]
        ):
            return None
        return Equation(result, noted[0], stated[0], place, (start, place[1]), False)
