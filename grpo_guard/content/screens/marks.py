"""Combining marks in number: letters crossed out, boxed or buried under what stands above them.

A model reads the letters and a person does not, or the other way round. Languages put one or two
marks on a letter, mathematics one (x̄, ẋ, a⃗).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from grpo_guard.content.screens.view import View
from grpo_guard.verdict import Finding

_MARK = (
    "\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20dc\u20dd-\u20df\u20e1\u20e2"
    "\u20e4-\u20f0\ufe20-\ufe2f"
)
_STACK = re.compile(f"[{_MARK}]{{3,}}")
# Overlays and enclosures, which are no language's; a few strike out a term of an equation.
_OVERLAY = re.compile(
    "[\u0334-\u0338\u0488\u0489\u20d2\u20d3\u20d8-\u20da\u20dd-\u20df\u20e2\u20e4-\u20f0]"
)
_OVERLAYS_ALLOWED = 8


def stacked_marks(view: View) -> Iterator[Finding]:
    """Three marks and more on one letter, or many that strike letters through or enclose them."""
    if view.ascii:
        return
    for match in _STACK.finditer(view.text):
        message = f"{len(match[0])} combining marks on one character"
        yield Finding("combining", message, char_span=match.span())
    places = [match.start() for match in _OVERLAY.finditer(view.text)]
    if len(places) > _OVERLAYS_ALLOWED:
        message = f"{len(places)} characters struck through or enclosed"
        yield Finding("combining", message, char_span=(places[0], places[-1] + 1))
