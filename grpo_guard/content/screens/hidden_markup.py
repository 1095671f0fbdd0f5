"""Markup that renders as nothing: a reader of the page does not see what the model is taught."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from grpo_guard.content.screens.view import MAX_FINDINGS, View, shown, word_set
from grpo_guard.verdict import Finding

_HIDDEN = re.compile(
    r"<!--|<script\b|<iframe\b"
    r"|\b(?:display\s{0,3}:\s{0,3}none|visibility\s{0,3}:\s{0,3}hidden|font-size\s{0,3}:\s{0,3}0"
    r"|opacity\s{0,3}:\s{0,3}0(?![.0-9])|color\s{0,3}:\s{0,3}(?:white|transparent)\b)"
    r"|<font\b[^<>\n]{0,40}\bsize\s{0,3}=\s{0,3}[\"']?0"
    r"|^\[(?://|comment)\]:|\]\(\s{0,3}javascript:"
    # Two words in it, since \phantom{0} lines digits up.
    r"|\\[hv]?phantom\{[^{}\n]{0,40}\{?[^\W\d_]{2,40}\s{1,4}[^\W\d_]{2,40}"
    r"|\\(?:text)?color\{white\}",
    re.IGNORECASE | re.MULTILINE,
)
_GATES = ("<!--", "<script", "<iframe", "<font", "display", "visibility", "font-size", "opacity",
          "color", "]:", "javascript:", "phantom")  # fmt: skip
# Who is asked for a page writes one.
_ASKED = word_set(
    "html css javascript script xml svg web website webpage page markdown react vue template latex "
    "typescript frontend"
)
_WORD = re.compile(r"[a-z]+")


def hidden_markup(view: View) -> Iterator[Finding]:
    """Comments, scripts, invisible styles and LaTeX phantoms, where no page was asked for."""
    lower = view.lower
    if not any(gate in lower for gate in _GATES):
        return
    for match in islice(_HIDDEN.finditer(view.text), MAX_FINDINGS):
        if not _ASKED.isdisjoint(_WORD.findall(view.prompt.lower())):
            return
        if not view.asked_for(match[0]):
            message = f"markup that is not displayed: {shown(match[0])}"
            yield Finding("hidden_markup", message, char_span=match.span())
