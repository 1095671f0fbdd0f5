"""Sums written in columns, with a line between the numbers and their result.

::

      42
    + 31
    ----
      73
"""

import re
from typing import Final

from grpo_guard.content.arithmetic.equation import Equation
from grpo_guard.content.arithmetic.notation import number
from grpo_guard.content.arithmetic.numbers import Rational

_NUMBER: Final = r"[0-9][0-9,]{0,14}(?:\.[0-9]{1,6})?"
# A carry over the numbers, another sum below the result or a word in a line make it unreadable.
_COLUMN: Final = re.compile(
    rf"(?:\A|(?<=\n))[ \t|$]{{0,40}}+(?P<first>{_NUMBER})[ \t]{{0,9}}+\n"
    rf"(?P<rest>(?:[ \t|$]{{0,40}}+[-+*x]?[ \t$]{{0,40}}+{_NUMBER}[ \t]{{0,9}}+\n){{1,12}}+)"
    r"[ \t|]{0,40}+[-_=\u2500\u2501]{2,40}+[ \t]{0,9}+\n"
    rf"[ \t|$]{{0,40}}+(?P<stated>{_NUMBER})[ \t]{{0,9}}+(?=\n[ \t]*+(?:\n|[A-Za-z`#*])|\n?\Z)"
)
_LINE: Final = re.compile(r"\n[ \t|]{0,40}+[-_=\u2500\u2501]{2,40}+[ \t]{0,9}+\n")
_ROW: Final = re.compile(rf"(?P<sign>[-+*x]?)[ \t$]{{0,40}}+(?P<number>{_NUMBER})[ \t]{{0,9}}+\n")


def columns(folded: str) -> list[Equation]:
    """Return the sums, differences and products in columns, right or wrong, in linear time."""
    if not _LINE.search(folded):  # most texts; the other pattern tries every line
        return []
    return [found for match in _COLUMN.finditer(folded) if (found := _read(folded, match))]


def _read(folded: str, match: re.Match[str]) -> Equation | None:
    rows = [(row["sign"], number(row["number"])) for row in _ROW.finditer(match["rest"])]
    first, result = number(match["first"]), number(match["stated"])
    signs = {sign for sign, _ in rows}
    if first is None or result is None or not rows[-1][0]:
        return None
    exact: Rational = first[0]
    for _, value in rows:
        if value is None:
            return None
        if signs <= {"+", ""}:
            exact += value[0]
        elif len(rows) > 1:
            return None
        else:
            exact = exact - value[0] if rows[0][0] == "-" else exact * value[0]
    stated, extent = result[0], (match.start("first"), match.end("stated"))
    written = folded[extent[0] : match.end("rest")].strip()
    right = abs(exact - stated) * 10 ** result[1] < 1 if result[1] else exact == stated
    return Equation(written, exact, stated, match.span("stated"), extent, right, False, None, "")
