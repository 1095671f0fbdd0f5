r"""Poison in a completion's own notation: one of its correct results is changed, and nothing else.

Targets are found by a plain pattern rather than by the verifier under test, which would find only
what it can read. A target is a true statement ``a op b = c`` between plain numbers, with prose, an
equals sign or the end of a clause on both sides: with an operator next to it, the completion would
be stating something else.
"""

import random
import re
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Final

from grpo_guard.core.completion import Completion

_GAP: Final = r"(?:[ $&*`]|\\{1,2}[,;! ()\[\]]){0,5}"
_NUMBER: Final = r"[0-9]{1,3}(?:,[0-9]{3}){1,3}(?![0-9])|[0-9]{1,9}(?:\.[0-9]{1,6})?"
_TARGET: Final = re.compile(
    rf"(?<![0-9.,\w])(?P<a>{_NUMBER}){_GAP}"
    rf"(?P<op>[-+*/−–×·⋅÷]|\\{{1,2}}(?:times|cdot|div)(?![A-Za-z])){_GAP}"
    rf"(?P<b>{_NUMBER}){_GAP}={_GAP}(?P<c>{_NUMBER})(?![0-9]|[.,][0-9]|[\w%^²³!°])"
)
_SIGNS: Final = {"−": "-", "–": "-", "×": "*", "·": "*", "⋅": "*", "÷": "/"}
_BEFORE: Final = re.compile(rf"(?:\A|[=:;,.!?\n>|。，：；]|[^\W\d_\\]{{2}}|(?<![\w)])\(){_GAP}\Z")
_COMMAND: Final = re.compile(r"\\[A-Za-z]{1,20}" + _GAP + r"\Z")
_BEHIND: Final = re.compile(rf"{_GAP}(?:\Z|[.;:,)\n<。，；）\"]|\\\\|\\n| [A-Za-z]{{2}})")
_BY: Final = (-10, -3, -2, -1, 1, 2, 3, 10)


def targets(text: str) -> Iterator[re.Match[str]]:
    """Yield a match for each correct calculation whose result, the group ``c``, can be changed."""
    for match in _TARGET.finditer(text):
        before = text[max(0, match.start() - 40) : match.start()]
        if _COMMAND.search(before) or not _BEFORE.search(before):
            continue
        if _BEHIND.match(text, match.end()) and _holds(match):
            yield match


def changed_result(row: Completion, rng: random.Random) -> Completion | None:
    """Change one of the completion's correct results; None if there isn't one."""
    found = list(targets(row.text))
    if not found:
        return None
    match = rng.choice(found)
    written = match["c"]
    value = _value(written)
    wrong = value + rng.choice([by for by in _BY if value + by > 0])
    shown = f"{wrong:,}" if "," in written else str(wrong)
    text = row.text[: match.start("c")] + shown + row.text[match.end("c") :]
    return replace(row, text=text)


def _value(written: str) -> Decimal:
    return Decimal(written.replace(",", ""))


def _holds(match: re.Match[str]) -> bool:
    a, b, c = (_value(match[name]) for name in "abc")
    sign = match["op"].strip("\\")
    sign = {"times": "*", "cdot": "*", "div": "/"}.get(sign, _SIGNS.get(sign, sign))
    if sign == "/":
        return b != 0 and c * b == a
    return c == {"+": a + b, "-": a - b, "*": a * b}[sign]
