"""Other readings of a wrong equation: a comma, colon or bracket can have another meaning.

Each reading is a rewritten text. If that text is true, the completion taught nothing wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from grpo_guard.content.arithmetic.chains import Link

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
