"""Words behind a number: units that change nothing, and words that change its value."""

from __future__ import annotations

import re
from typing import Final

from grpo_guard.content.arithmetic.expression import Operand
from grpo_guard.content.arithmetic.notation import vocabulary

MAX_UNIT_WORDS: Final = 8
SCALES: Final = {
    "dozen": 12,
    "dozens": 12,
    "score": 20,
    "hundred": 100,
    "thousand": 1000,
    "thousands": 1000,
    "k": 1000,
    "K": 1000,
    "million": 10**6,
    "M": 10**6,
    "billion": 10**9,
    "pair": 2,
    "pairs": 2,
}
# Behind a number these change its value: nothing can be said of the calculation.
SPOILING: Final = vocabulary(
    "squared cubed root mod xor modulo choose factorial pi e i remainder base power"
)
# These end what is said of a number; an operator behind them has another left operand.
STOPPING: Final = SPOILING | vocabulary(
    "than twice half double triple thrice third quarter to over from less fewer if when where "
    "because so since which then but and negative about average log ln sin cos tan max min exp "
    "hence thus therefore"
)
# Letters written straight behind a number that are units and not unknowns.
ATTACHED: Final = vocabulary(
    "g kg mg m cm mm km h hr hrs min mins s sec secs ml mL l L lb lbs oz ft in yd mi mph k K kB MB "
    "GB am pm th st nd rd cents dollars kW Hz cal kcal degrees"
)
_WORD: Final = re.compile(r"[^\s-]++")


def is_unit(operand: Operand, text: str, touches: bool) -> bool:
    """Whether these words only say of what there are so many; records them."""
    if text not in ATTACHED and text[0] != "-":
        if touches and operand.group is None:
            return False
        if len(text) == 1:
            return False
    words = _WORD.findall(text[:400])
    if len(words) > MAX_UNIT_WORDS or not STOPPING.isdisjoint(map(str.lower, words)):
        return False
    if operand.scale == 1:
        operand.scale = SCALES.get(words[0], 1)
    # A letter apart may be a unit, one that touches the number may be an unknown.
    apart = " " if len(text) == 1 and not touches else ""
    operand.unit = f"{operand.unit} {text}".strip()[:80] + apart
    return True


def spoils(text: str, touches: bool) -> bool:
    """Words that change the value, unlike a sentence that merely goes on."""
    first = _WORD.match(text)
    return touches or len(text) == 1 or (first is not None and first[0].lower() in SPOILING)


def is_remark(text: str) -> bool:
    """Whether words in brackets behind a number may be skipped."""
    return (STOPPING - {"from", "to"}).isdisjoint(_WORD.findall(text.lower()[:200]))
