"""The plain form, ``12 * 4 = 48``, confirmed without the full parser.

Most equations of most texts are a few plain numbers, and right. This path reads nothing else, and
can only confirm: a line with anything odd in it, or whose numbers do not agree to the last digit,
goes to the full path untouched. Whatever is confirmed here the full path finds too, and finds
right; a test holds them against each other.
"""

from __future__ import annotations

import re
from typing import Final

from grpo_guard.content.arithmetic.equation import Equation
from grpo_guard.content.arithmetic.lines import OPERATION
from grpo_guard.content.arithmetic.measures import sizes_of
from grpo_guard.content.arithmetic.notation import Rational, number, vocabulary
from grpo_guard.content.arithmetic.units import SCALES, SPOILING, STOPPING

NUM: Final = (
    r"(?:(?:[1-9][0-9]{0,2}(?:,[0-9]{3}){1,4}|0|[1-9][0-9]{0,14}+)(?:\.[0-9]{1,18}+)?"
    r"|\.[0-9]{1,18}+)"
)
_SIGN: Final = r"(?:[ ]{0,2}[-+*/][ ]{0,2}\$?|[xX][ ]?\$?|[ ][xX][ ]\$?)"
_NAME: Final = r"[A-Za-z]{2,20}+"
_UNIT: Final = rf"(?:(?:[ ]{_NAME}(?:-{_NAME})?+){{1,7}}+(?:/{_NAME})?+|/{_NAME})?+"
LEFT: Final = rf"{NUM}{_UNIT}(?:{_SIGN}{NUM}{_UNIT}){{1,6}}+"
# No sign or digit in front of it.
APART: Final = r"(?<![\w.,'+*/^%(){}\[\]\\<>-])"
STATED: Final = (
    rf"[ ]{{0,2}}=[ ]*+\$?[ ]*+({NUM})"
    # Behind it the text ends, or goes on with words: no sign, unit of one letter, or more digits.
    r"(?=[ ]*+\Z|(?:[ ]++|/)(?:[A-Za-z]{2}|a (?:day|week|month|year))"
    r"|[ ]?[.,;:](?:[ ]*+\Z|[ ]++[A-Za-z]))"
)
_EQUATION: Final = re.compile(rf"{APART}(?<![0-9]:)({LEFT}){STATED}")
SIDE: Final = rf"{NUM}(?:[-+*/]{NUM}){{1,8}}+"
PLAIN_NOTE: Final = re.compile(rf"({SIDE})=(-?{NUM})")
# Lines of the usual tagged format may begin and end so.
_HEAD: Final = "<think>"
_TAIL: Final = re.compile(r"(?:</think>)?[ ]?<answer>[$0-9., ]{0,20}</answer>[ ]?\Z|</think>\Z")
# Words and free numbers, without dashes that may be a minus, ellipses or quotations.
_PROSE: Final = re.compile(
    r"[A-Za-z0-9 ,;:=]*+(?:(?:\.(?!\.)|(?<![A-Za-z])\$(?![A-Za-z])|(?<=[A-Za-z])'"
    r"|(?<=[A-Za-z0-9])-(?=[A-Za-z]{2})"
    r"|(?<=[0-9])%(?=[.,;]|[ ][A-Za-z])|(?<=[0-9])/(?=[0-9])"
    r"|(?<=[A-Za-z])/(?=[A-Za-z]{2})(?!of|and|is|are|was|were|plus|minus|times|by|per)"
    r"|(?<=[ ])\([$A-Za-z0-9 ]{1,40}+\)(?=[ ][A-Za-z]))[A-Za-z0-9 ,;:=]*+)*+"
)
# The same without any number: most lines.
BARE: Final = (
    r"[A-Za-z ,;:]*+(?:(?:\.(?!\.)|(?<![A-Za-z])\$(?![A-Za-z])"
    r"|(?<=[A-Za-z])(?:'|-(?=[A-Za-z]{2})))[A-Za-z ,;:]*+)*+"
)
_BARE: Final = re.compile(BARE)
# A list, or a number in the middle of a word.
_LISTED: Final = re.compile(r"(?<![0-9])[.,;:]\$?[0-9]|[A-Za-z][0-9]")
_SHARE: Final = re.compile(r"[0-9][%/]")
_WORD: Final = re.compile(r"[a-z]++")
_DIGIT: Final = re.compile(r"[0-9]")
_JOINED: Final = re.compile(r"[0-9][^A-Za-z]*+(?:and[^A-Za-z]*+)?+\Z")
_JOIN_REACH: Final = 60  # the search goes to the end from every digit, so it must be short
_CLAUSE_END: Final = re.compile(r"[.,;:]")
_SIGNS: Final = vocabulary("plus minus times multiplied divided x percent sqrt")
# Behind a number these change its value.
_CHANGING: Final = _SIGNS | frozenset(word.lower() for word in SCALES) | SPOILING
BEHIND: Final = _CHANGING - {"times"}  # "6 times" is a count
_RELATING: Final = vocabulary(
    "is are was were be equal equals equaled equalled gives give makes make yields totals becomes "
    "comes adds add amounts results turns works get which approximately"
)
_PIECE: Final = re.compile(r"[0-9.,]+|[-+*/xX]")
_WHOLE: Final = frozenset("/.,")
_UNIT_WORD: Final = re.compile(r"[/-]?[A-Za-z]{2,}+")
_BINDING: Final = _RELATING | _SIGNS
_NO_UNITS: Final = STOPPING | _RELATING | _CHANGING | {"of"}


def confirmed(text: str, folded: str, start: int, end: int) -> list[Equation] | None:
    """The equations of a line, all plain and right; None if the full path must read it.

    Args:
        text: As written.
        folded: The same with plain signs (`characters.fold`).
        start, end: The line.
    """
    if folded.startswith(_HEAD, start):
        start += len(_HEAD)
    if folded.endswith(">", start, end) and (tail := _TAIL.search(folded, start, end)) is not None:
        end = tail.start()
    found: list[Equation] = []
    at = start
    while (match := _EQUATION.search(folded, at, end)) is not None:
        begin = match.start()
        between = folded[at:begin]
        if not (_leads_on(between) if found else leads_in(between)):
            return None
        equation = _equation(text, match)
        if equation is None:
            return None
        found.append(equation)
        at = match.end()
    if not found:
        return found if states_nothing(folded[start:end]) else None
    return found if leads_out(folded[at:end]) else None


def states_nothing(line: str) -> bool:
    """Whether a line with a sign of equality has numbers on one side at most: ``x = 7``."""
    left, sign, right = line.partition("=")
    if not sign or "=" in right or not line.isascii() or "~" in line or "\\" in line:
        return False
    one_sided = _DIGIT.search(left) is None or _DIGIT.search(right) is None
    return one_sided and OPERATION.search(line) is None


def confirmed_note(text: str, folded: str, start: int, end: int) -> list[Equation] | None:
    """The same for the inside of a calculator note: nothing but signs and numbers."""
    match = PLAIN_NOTE.fullmatch(folded, start, end)
    equation = None if match is None else _equation(text, match)
    return None if equation is None else [equation]


def _equation(text: str, match: re.Match[str]) -> Equation | None:
    left, stated = match.groups()
    value = agreed(left, stated)
    if value is None:
        return None
    start, span = match.start(), match.span(2)
    return Equation(text[start : match.end(1)][:200], value, value, span, (start, span[1]), True)


def leads_in(prose: str) -> bool:
    """Whether what stands before the first equation leaves it as it is."""
    if not prose:
        return True
    bare = _BARE.fullmatch(prose) is not None
    if not bare and _PROSE.fullmatch(prose) is None:
        return False
    if ends_with_sign(prose):
        return False
    if bare or _DIGIT.search(prose) is None:
        return True
    if "=" in prose or _is_joined(prose):
        return False
    # Half of what, a third of which: a share takes part in more than a bare number does.
    share = _SHARE.search(prose) is not None
    last = _last_word(prose)
    if share and last in ("of", "the", "those", "these"):
        return False
    return (_BINDING if share else _SIGNS).isdisjoint(_WORD.findall(prose.lower()))


def ends_with_sign(prose: str) -> bool:
    """Whether an operator in words ends it."""
    return _last_word(prose) in _SIGNS


def _last_word(prose: str) -> str:
    return prose.rstrip(" $.,;:=").rpartition(" ")[2].lower()


def _is_joined(prose: str) -> bool:
    """Whether an earlier number may be joined to the equation behind: a mixed number, a list."""
    near = prose[-_JOIN_REACH:]
    return _JOINED.search(near) is not None or not _WORD.search(near.lower())


def leads_out(prose: str) -> bool:
    """Whether what stands behind the last equation relates its result to no number."""
    if not prose or prose == ".":
        return True
    if _BARE.fullmatch(prose) is not None:
        return leaves_alone(prose)
    return (_is_remark(prose) and _DIGIT.search(prose) is None) or _leads_on(prose)


def _is_remark(prose: str) -> bool:
    """Prose whose first clause leaves the number before it as it is."""
    if "=" in prose or "(" in prose or _PROSE.fullmatch(prose) is None:
        return False
    if _SHARE.search(prose) is not None or _LISTED.search(prose) is not None:
        return False
    return leaves_alone(prose)


def leaves_alone(prose: str) -> bool:
    """Whether no word of the first clause changes the number before it."""
    clause = _CLAUSE_END.split(prose, 1)[0].lower()
    # Two spaces part the words: what follows them is no longer a unit of several words.
    return "  " not in clause and BEHIND.isdisjoint(_WORD.findall(clause))


def _leads_on(prose: str) -> bool:
    """The same where more numbers follow, which no verb or sign may join to the result."""
    if not _is_remark(prose):
        return False
    words = _WORD.findall(prose.lower())
    if not words or not _RELATING.isdisjoint(words) or not _SIGNS.isdisjoint(words):
        return False
    digit = _DIGIT.search(prose)
    if digit is None:
        return True
    if _is_joined(prose):
        return False
    if _CLAUSE_END.search(prose, 0, digit.start()) is not None:
        return True
    # "2 hours and 30 minutes" is one measure
    ahead = _WORD.findall(prose[: digit.start()].lower())
    if not ahead or ahead[-1] == "and":
        return False
    following = _WORD.search(prose.lower(), digit.end())
    dimensions = {dimension for dimension, _ in sizes_of(ahead[-1])}
    return following is None or not any(d in dimensions for d, _ in sizes_of(following.group()))


def agreed(left: str, stated: str) -> Rational | None:
    """The value of both sides of a plain equation if they are equal, and else None."""
    read = number(stated) if holds(left, stated) else None
    return None if read is None else read[0]


def holds(left: str, stated: str) -> bool:
    """Whether both sides of a plain equation are equal."""
    sides = compared(left, stated)
    return sides is not None and sides[0] >= 0 and sides[0] == sides[1]


def compared(left: str, stated: str) -> tuple[int, int, int] | None:
    """Both sides of a plain equation and what both were multiplied by; None if it has no sense."""
    if units := _UNIT_WORD.findall(left):
        if not _NO_UNITS.isdisjoint([word.strip("/-").lower() for word in units]):
            return None
        left = _UNIT_WORD.sub("", left)
    pieces = _PIECE.findall(left)
    if _WHOLE.isdisjoint(left) and stated.isdigit():
        return _whole_sum(pieces), int(stated), 1
    top, bottom = _ratio(pieces[0])
    total, below, sign, slashes = 0, 1, 1, 0
    for operator, right in zip(pieces[1::2], pieces[2::2], strict=True):
        over, under = _ratio(right)
        if operator in "+-":
            total, below = total * bottom + sign * top * below, below * bottom
            top, bottom, sign = over, under, 1 if operator == "+" else -1
        elif operator == "/":
            slashes += 1
            top, bottom = top * under, bottom * over
        else:
            top, bottom = top * over, bottom * under
    total, below = total * bottom + sign * top * below, below * bottom
    over, under = _ratio(stated)
    # Two bars may be a date, and a negative difference of two numbers a range of pages.
    return None if below == 0 or slashes > 1 else (total * under, over * below, below * under)


def _whole_sum(pieces: list[str]) -> int:
    """Value of whole numbers with the signs between them, none of which divides."""
    total, term = 0, int(pieces[0])
    for operator, right in zip(pieces[1::2], pieces[2::2], strict=True):
        if operator in "+-":
            total += term
            term = int(right) if operator == "+" else -int(right)
        else:
            term *= int(right)
    return total + term


def _ratio(written: str) -> tuple[int, int]:
    if written.isdigit():
        return int(written), 1
    whole, _, decimals = written.replace(",", "").partition(".")
    return int(whole + decimals), 10 ** len(decimals)
