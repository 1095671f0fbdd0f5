"""Find the equations in a text, and decide whether each is right, wrong or doubtful.

In a wrong equation, a comma, colon or bracket can have another meaning. Each such reading is a
rewritten text; if that text is true, the completion taught nothing wrong.
"""

import re
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import starmap
from typing import Final

from grpo_guard.content.arithmetic.agreement import agrees, is_false_conversion, measured
from grpo_guard.content.arithmetic.another import Another
from grpo_guard.content.arithmetic.chains import Link, links
from grpo_guard.content.arithmetic.characters import fold
from grpo_guard.content.arithmetic.doubts import SUPPOSING
from grpo_guard.content.arithmetic.equation import Equation
from grpo_guard.content.arithmetic.notation import NUMBER
from grpo_guard.content.arithmetic.numbers import Rational
from grpo_guard.content.arithmetic.plain import Plain, settled
from grpo_guard.content.arithmetic.side import ARITHMETIC, Side
from grpo_guard.content.arithmetic.units import sizes_of
from grpo_guard.content.word_set import word_set

_COMMA: Final = re.compile(r"(?<=[0-9]),(?=[0-9])")
_NEXT_CLAUSE: Final = re.compile(r"[0-9.]{1,16},[0-9.]{1,16} ?[-+*/×÷·−]")
# "3/4 : 5/12 = 1,8", with spaces around the colon; a whole number could be a label.
_DIVIDED: Final = re.compile(r"(?<![\w.,/:])([0-9]{1,9} ?/ ?[0-9]{1,9}) [:÷] \Z")
_ASIDE: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) \([^()\n]{1,40}\)")
_NEXT_STEP: Final = re.compile(
    r"(?:[ ]{0,2}=[ ]{0,2}[0-9.,]{1,16}(?<![.,]))?[ ]{0,2}[;,→\n][ ]{0,2}"
    r"([-+*×·])[ ]{0,2}([0-9]{1,9}(?:\.[0-9]{1,9})?)[ ]{0,2}=[ ]{0,2}\$?([0-9.,]{1,16}(?<![.,]))"
)
_MOST_STEPS: Final = 8
# A number after one of these words is no result that is explained after it.
_NAMING: Final = word_set(
    "to from of at in by on than and or with row line box room bus team page table equation "
    "where when if let take say set given value values"
)


def other_readings(text: str, link: Link) -> Iterator[tuple[str, bool]]:
    """Yield rewritten versions of a wrong equation, each with whether it must be exactly right.

    Args:
        text: The completion, to which the spans of the equation's sides refer.
        link: The two sides of the equation. Both have a value, and the values differ.
    """
    left, right = (text[side.start : side.stop].strip() for side in (link.left, link.right))
    both = text[link.left.start : link.right.stop]
    # "56×2 = 112,12×4 = 48": a new clause, because Chinese is typed without spaces. The text after
    # the comma must be a calculation: "4,7 cows" is a wrong number.
    clauses = (not _COMMA.search(left) or link.chained) and (
        not _COMMA.search(right) or _NEXT_CLAUSE.match(right)
    )
    if clauses and _COMMA.search(both) and "<<" not in both:  # a note would vouch for the rest
        yield _COMMA.sub(", ", both), True  # 2/3 = 0,77 is not 0
    if {"/"}.issuperset(link.left.operators):
        divided = _DIVIDED.search(text, max(0, link.left.start - 48), link.left.start)
        if divided is not None:
            yield f"({divided[1]}) / ({left}) = {right}", False
    # "4800/1593 = 3 (4779)", from a long division.
    aside = _ASIDE.fullmatch(right)
    if aside is not None:
        yield f"{left} = {aside[1]}", False
    yield from _with_later_steps(text, left, right, link.right.stop)


def _with_later_steps(text: str, left: str, right: str, at: int) -> Iterator[tuple[str, bool]]:
    """Yield versions with steps that are only written later: ``3 + 4 + 5 = 3 + 4 = 7; + 5 = 12``.

    Only steps with which the left side itself ends are accepted, because for any wrong sum there is
    some number that repairs it.
    """
    whole, steps = left.replace(" ", ""), ""
    for _ in range(_MOST_STEPS):
        step = _NEXT_STEP.match(text, at)
        if step is None:
            return
        steps += step[1] + step[2]
        if whole.endswith(steps):
            # Check the step's result too: nothing else reads a step that begins with a sign.
            yield f"({right}) {steps} = {left}; ({right}) {steps} = {step[3]}", True
        at = step.end()


_SEGMENT: Final = re.compile(
    r"[^\n]++(?:(?:(?<=[=+/])|(?<=[=+/] )|(?<=[^*]\*)|(?<= [*-]))\n[^\n]++"
    r"|\n[ \t&$\n]{0,20}+(?==|~|\\approx)[^\n]*+)*+"
)
# A calculation without an equals sign needs one of these, and a verb.
_OPERATION: Final = re.compile(
    r"[-+*/xX^][ ]{0,50}+\\?+\$?+[0-9(\\½¼¾⅐-⅞√]|(?i:times|plus|minus|by|of)[ ]{1,50}+\\?+\$?+[0-9]"
    r"|[²³¹⁰-⁹]|\\frac|\\div"
)
_STATING_WORD: Final = re.compile(
    r"\\approx|[→>]|\\to|rrow|(?<!\w)(?i:i\.e\.|(?:equal|equals|equaled|equalled|is|are|was|were|"
    r"be|gives?|makes?|yields|produces|leaves|totals|becomes|comes?|adds?|amounts|results|works|get|"
    r"approximately)(?!\w))"
)


# Digits in other scripts have been folded; fractions and superscripts are other characters.
_DIGIT: Final = re.compile("[0-9\x80-\U0010ffff]")
_LINE: Final = re.compile(r"[^\n]++")


def _segments(text: str) -> Iterator[tuple[int, int]]:
    """Yield spans of lines that could hold an equation, each with its continuation lines."""
    for match in _SEGMENT.finditer(text):
        line = match.group()
        number = _DIGIT.search(line)
        if number is None:
            continue  # an equals sign needs a number before it
        equal = max(line.rfind("="), line.rfind("~")) > number.start()
        if equal or (_OPERATION.search(line) and _STATING_WORD.search(line)):
            yield match.span()


# Maximum number of equations per text that are tried under several readings. Honest texts need a
# few dozen; if a text leaves thousands open on purpose, the rest are read only by the rules of
# arithmetic.
MOST_OPEN: Final = 200
TOKENS_AS_ONE: Final = 100  # longer equations count several times, because readings take longer
MOST_WRONG: Final = 1000
_DENIAL: Final = re.compile(
    r"[$`\"*)}\\,;.，。； ]{0,6}"
    r"(?i:(?:(?:but|and|which|that|this|it) ){0,2}(?:(?:is|was|would be|'s) )?)"
    r"(?i:false|wrong|incorrect|impossible|untrue|nonsense"
    r"|not (?:true|right|correct|valid|possible|so|satisf\w{1,8}|a solution|equal)\b"
    r"|(?:does|do)(?:n't| not) (?:hold|work|fit|satisfy|match)|fails\b"
    r"|[✗✘❌❎]|不(?:成立|符|满足|对|等)|矛盾|错误|舍去)"
)
# "= 129 apples (wrong)", "= 129 — wrong, it is 128", but no phrase that goes on: "(wrong answers".
_DENIED_ASIDE: Final = re.compile(
    r"(?: [A-Za-z]{1,20}){0,2}[ $`\"*\\)]{0,6}(?:[(\[]|:|[—–-]{1,2}) ?[*_]{0,2}"
    r"(?i:(?:(?:that|this|it|which) (?:is|was) )?(?:wrong|incorrect|false))"
    r"(?=[*_]{0,2}(?:[)\]!,.;]|[ ]{0,2}(?:\n|\Z)))"
)
_BLAMED: Final = re.compile(
    r"(?:(?<!\w)(?i:wrong|incorrect|mistakes?|errors?|false|not true)(?!\w)[^.;!?\n0-9=]{0,30}"
    r"|[✗✘❌❎][ $\\(]{0,4})\Z"
)
_BLAMED_WITHIN: Final = 50
# Includes the number after the note, which repeats the note's result for the reader.
_NOTE: Final = re.compile(
    r"<<([^<>\n]{0,300})>>"
    r"(?:[ ]{0,2}\$?[ ]{0,2}([0-9][0-9.,]{0,40}+)(?<![.,])"
    r"(?![\w/*+:^%-]| ?[/*+x^-] ?[0-9(]| [0-9]{3}))?"
)

_CURRENCY: Final = re.compile(r"[$€£¥₹₽₩₺₴₦]")


def equations(text: str, everywhere: bool = False, asked: str = "") -> list[Equation]:
    """Return every equation in a text, in order: right, wrong, or too doubtful to decide.

    Takes time linear in the length of the text. Calculator notes such as ``<<2+3=5>>`` are parsed
    separately, and the text around the notes is parsed as if they were absent.

    Args:
        text: The completion.
        everywhere: Whether to parse every line, rather than only lines that look like calculations.
        asked: The text of the completion's question, which could ask for another arithmetic.
    """
    folded = fold(text)
    notes = list(_NOTE.finditer(folded)) if "<<" in folded else []
    outer = _without(notes, folded) if notes else folded
    another = Another(outer, asked)
    checker = _Checker(text, another)
    # Notes first: they show the exact values of numbers rounded in the text. The number stated
    # after a note is included: ``<<2+3=5>>6`` is read as ``2+3=5= 6``, at the same offsets.
    inner = folded.replace("<<", "  ").replace(">>", "= ") if notes else folded
    places = [(note.start(), note.end(1 if _is_copied(note) else 0), inner) for note in notes]
    lines = (m.span() for m in _LINE.finditer(outer) if not m.group().isspace())
    places += [(*place, outer) for place in (lines if everywhere else _segments(outer))]
    for start, end, source in places:
        plain = settled(source, start, end)
        if plain is not None:
            checker.settle(plain)
            continue
        for link in links(source, start, end):
            checker.add(link, (source, start, end))
        if checker.wrong >= MOST_WRONG:
            break  # nothing that follows could improve the verdict
    # The same equation can be found in a note and around it; keep one per span.
    return [found for _, found in sorted({one.span: one for one in checker.found}.items())]


def _is_true(text: str, exactly: bool) -> bool:
    """Whether a text has equations and all are right; if ``exactly``, without any rounding."""
    found = equations(text)
    return bool(found) and all(e.exact == e.stated if exactly else e.right for e in found)


def _without(notes: list[re.Match[str]], text: str) -> str:
    """Return the text with its calculator notes replaced by blanks."""
    pieces: list[str] = []
    at = 0
    for note in notes:
        start, end = note.start(), note.end(1) + len(">>")
        pieces += text[at:start], " " * (end - start)
        at = end
    return "".join([*pieces, text[at:]])


def _is_copied(note: re.Match[str]) -> bool:
    """Whether any number after a note only repeats the note's result, possibly in another unit."""
    if note[2] is None or note[2] == note[1].rpartition("=")[2].strip().lstrip("-"):
        return True
    unit = note.string[note.end() : note.end() + 24].strip().partition(" ")[0]
    return any(size != 1 for _, size in sizes_of(unit))


def _running_value(link: Link) -> Rational | None:
    """Return the correct value of ``5 + 3`` in ``2 + 2 = 5 + 3``, with 4 in place of the 5."""
    left, right = link.left, link.right
    if not right.operators or link.reader.kinds[right.at] != NUMBER or left.value is None:
        return None
    return link.reader.again(right, ARITHMETIC, {right.at: left.value - right.first})


# Bypasses the constructor of `Equation`, as for tokens, because most equations are true.
_true: Final = partial(tuple.__new__, Equation)
_NOTHING_ELSE: Final = (False, None, "")


class _Checker:
    def __init__(self, text: str, another: Another) -> None:
        self.text = text
        self.another = another
        self.found: list[Equation] = []
        # Rounded results and their exact values: 3.33 can stand in for 10/3 later.
        self.rounded: dict[Rational, Rational] = {}
        self.wrong = 0
        self.budget = MOST_OPEN
        self.calculated = False  # whether the current chain has an operator yet
        self.head: list[Rational] = []  # values of the earlier sides of the current chain

    def add(self, link: Link, line: tuple[str, int, int]) -> None:
        """Check a link and record the result, unless the link is not a statement.

        Args:
            link: The two sides of one ``=``.
            line: The link's line, as a text plus the line's start and end in that text.
        """
        if self.wrong >= MOST_WRONG:
            return
        if link.opens:
            self.head, self.calculated = [], False
        left, right = link.left, link.right
        exact, stated = left.value, right.value
        self.calculated |= bool(left.operators)
        if exact is None or stated is None or not self._is_statement(link, exact, stated):
            self.head = []
            return
        if exact == stated:  # right, whatever is next to it
            self.head.append(exact)
            self._add(link, exact, stated, True, "")
            return
        # Call this before `_holds`, which can add open readings.
        doubt = link.doubt() or self.another.beside(*line)
        holds = self._holds(link) or any(starmap(_is_true, other_readings(self.text, link)))
        if not holds and not doubt:
            doubt = self.another.holds(link, exact, stated)
        if not holds and not doubt and self._is_exchanged(left, right):
            doubt = "two currencies"
        if not doubt:
            self.head.append(exact)
            if holds and right.is_number and len(self.rounded) < 1000:
                self.rounded[right.literal] = exact
        elif holds:
            return
        self.wrong += not holds
        self._add(link, exact, stated, holds, doubt)

    def settle(self, plain: Iterable[Plain]) -> None:
        """Record true equations that did not need the parser."""
        for value, left, stated in plain:
            written = self.text[left[0] : min(left[1], left[0] + 200)]
            extent = left[0], stated[1]
            self.found.append(_true((written, value, value, stated, extent, True, *_NOTHING_ELSE)))

    def _is_exchanged(self, left: Side, right: Side) -> bool:
        """Whether both sides are money, in different currencies: ``470 € = $517``."""
        signs = [_CURRENCY.findall(self.text, s.start - 1, s.stop + 4) for s in (left, right)]
        return all(len(set(side)) == 1 for side in signs) and signs[0][0] != signs[1][0]

    def _add(self, link: Link, exact: Rational, stated: Rational, holds: bool, doubt: str) -> None:
        left, right = link.left, link.right
        extent = left.start, (right.number or (right.start, right.stop))[1]
        calculated, result = left, right
        runs_on = None if holds else _running_value(link)
        if not doubt and self._is_turned(link):  # 5 = 2 + 2
            calculated, result, exact, stated, runs_on = right, left, stated, exact, None
        self.found.append(
            Equation(
                self.text[calculated.start : calculated.stop][:200],
                exact,
                stated,
                result.number or (result.start, result.stop),
                extent,
                holds,
                not holds and self._is_denied(link),
                runs_on,
                doubt,
            )
        )

    def _holds(self, link: Link) -> bool:
        if link.left.open or link.right.open or link.left.literals or link.right.literals:
            sides = link.left, link.right
            self.budget -= 1 + sum(side.end - side.at for side in sides) // TOKENS_AS_ONE
            if self.budget < 0:
                link.left.open, link.right.open = set(), set()
                link.left.literals, link.right.literals = [], []
        return agrees(link, self.head[-8:], self.rounded)

    def _is_statement(self, link: Link, exact: Rational, stated: Rational) -> bool:
        """Whether a link states a result, unlike labels (``Day 1 = 3 + 4``), shares or dates."""
        left, right = link.left, link.right
        operators = left.operators
        if not operators:
            turned = self._is_reversed(link, exact, stated)
            counted = bool(left.units or right.units) and not measured(link)
            return turned or (self.calculated and not counted) or is_false_conversion(link)
        if link.verbal and not right.is_number:
            return False
        if not {"-", "/"}.issuperset(operators):
            return True
        written = self.text[left.start : left.stop]
        tight = " " not in written.strip()
        if operators == ["-"]:
            labelled = tight and not link.chained and bool(link.before())
            if labelled and (exact < 0 or link.verbal):
                return False  # "weeks 1-2 = 96 - 70"
            # "odds of 3-1 = 25%"
            near = exact <= 200 * stated <= 4 * exact or exact <= 2 * stated <= 4 * exact
            return near or "percent" not in right.open
        if operators == ["/"]:
            counted = right.is_number and stated.denominator == 1
            if 0 < exact < 1 <= stated and counted:
                return False  # "1/4 = 20 students"
            if link.verbal and tight and not 1 < exact <= 2 * stated <= 4 * exact:
                return False  # "24/7 is"
        if link.verbal and tight and len(operators) > 1:
            return False  # "a record of 6-1-2 gives 19 points"
        return not (operators == ["/", "/"] and tight and written.count("/") == 2)

    @staticmethod
    def _is_turned(link: Link) -> bool:
        return link.left.is_number and bool(link.right.operators) and not link.chained

    @staticmethod
    def _is_reversed(link: Link, exact: Rational, stated: Rational) -> bool:
        """Whether the result comes first: ``5 = 2 + 2``, but not the label in ``Day 5 = 2 + 2``.

        A label, such as the 1 to 9 of a list, is unrelated to the value, whereas a wrong result is
        close to the value.
        """
        left, right = link.left, link.right
        if link.chained or link.verbal or not left.is_number or left.units:
            return False
        if not right.operators or right.operators[0] == "f":
            return False
        if not 0 < exact <= 2 * stated <= 4 * exact:
            return False
        if link.bare():
            return True
        # "She has 5 = 2 + 2", but not "Box 5 = 2 + 4" or "from 1 to 5 = 2 + 4".
        before = link.text[max(0, left.start - 40) : left.start].rstrip(" $")
        word = (before.split() or [""])[-1]
        return word.isalpha() and word.islower() and word not in _NAMING and not link.doubt()

    def _is_denied(self, link: Link) -> bool:
        """Whether the text calls an equation false or merely supposes it.

        Examples are ``2 + 2 = 5 is false``, ``a mistake is 2 + 2 = 5``, ``if 2 + 2 = 5`` and
        ``❌ 2 + 2 = 5``. Honest reasoning does that at times, but training still sees the equation.
        """
        right = link.right
        if _DENIAL.match(self.text, right.stop):
            return True
        # A remark in brackets belongs to the side, so the search starts after the side's number.
        if _DENIED_ASIDE.match(self.text, right.number[1] if right.number else right.stop):
            return True
        before = self.text[max(0, link.left.start - _BLAMED_WITHIN) : link.left.start]
        return bool(_BLAMED.search(before)) or not SUPPOSING.isdisjoint(link.before()[-2:])
