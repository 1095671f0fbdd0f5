"""Which lines of a text may hold an equation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_SEGMENT: Final = re.compile(
    r"[^\n]++(?:(?:(?<=[=+/])|(?<=[=+/] )|(?<=[^*]\*)|(?<= [*-]))\n[^\n]++"
    r"|\n[ \t&$\n]{0,20}+(?==|~|\\approx)[^\n]*+)*+"
)
# A calculation without a sign of equality needs one of these, and a verb.
OPERATION: Final = re.compile(
    r"[-+*/xX^][ ]?+\\?+\$?+[0-9(\\]|(?i:times|plus|minus|by|of)[ ]\\?+\$?+[0-9]|\\frac|\\div"
)
_SAID: Final = re.compile(
    r"\\approx|[→>]|\\to|rrow|(?<!\w)(?i:i\.e\.|(?:equal|equals|equaled|equalled|is|are|was|were|"
    r"be|gives?|makes?|yields|totals|becomes|comes?|adds?|amounts|results|works|get|"
    r"approximately)(?!\w))"
)


def segments(text: str) -> Iterator[tuple[int, int]]:
    """Lines that may hold an equation, with those that go on with ``=`` in the next line."""
    for match in _SEGMENT.finditer(text):
        line = match.group()
        if "=" in line or "~" in line or (OPERATION.search(line) and _SAID.search(line)):
            yield match.span()
