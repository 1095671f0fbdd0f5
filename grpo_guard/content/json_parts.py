"""Where JSON is inside a completion, which need not be well-formed. Linear in the text."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final, TypeAlias

Span: TypeAlias = tuple[int, int]

# A key, or a text that is one string, is enough to count as JSON: models forget to escape something
# or are cut off, and a strict parser would refuse that. Bounded, as it is looked for everywhere.
_OBJECT: Final = r'(?:[\[{]\s{0,200}+){1,12}+"(?:[^"\\\n]|\\[^\n]){0,999}+"\s{0,99}+:'
# At the start of a text or of a fence, JSON goes on to the end of either.
_WHOLE: Final = re.compile(
    rf'(?:\A|```(?:json|JSON)?(?=[ \t\r]*\n))\s*+(?={_OBJECT})|\A\s*+(?="(?s:.*)"\s*\Z)'
)
# Behind the tag of a call, a label ("Action Input:") or another object, and at a line's start.
_INSIDE: Final = re.compile(
    r"(?:<[^<>\n]{1,200}+>\s{0,200}+|\[[A-Z_]{3,24}+\]\s{0,200}+|[}\]][\s,;]{0,200}+|\bfunctools(?=\[)"
    rf"|^[ \t]{{0,200}}+(?:[A-Za-z][A-Za-z ]{{1,24}}+:\s{{0,200}}+)?+)(?={_OBJECT})",
    re.M,
)
_FENCE: Final = re.compile(r"^[ \t>]{0,12}+(?:```++|~~~++)[ \t]{0,8}+([^\s`]{0,32}+)", re.M)
_DATA: Final = frozenset({"json", "jsonl", "json5", "xml", "tool_call", "tool_calls"})
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', re.S)


def json_parts(text: str) -> Iterator[Span]:
    """Yield spans of JSON in a text, in order.

    It is all of the text, the content of a fence, or an object at the start of a line or behind
    the tag of a call. One that is never closed goes on to the end.
    """
    if '"' not in text:
        return
    begins = [(match.end(), 0) for match in _WHOLE.finditer(text)]
    begins += [
        (match.end(), 1 if match[0][:1] in ("<", "[") else 2) for match in _INSIDE.finditer(text)
    ]
    programs = _programs(text) if begins else []
    end = 0
    for at, kind in sorted(begins):
        # A dictionary in a program is no JSON; a tag says that a call follows, wherever it is.
        if at < end or (kind == 2 and bisect_right(programs, at) % 2):
            continue
        if kind == 0:
            close = text.find("```", at)
            end = len(text) if close < 0 else close
        else:
            end = _closed(text, at)
        yield at, end


def _programs(text: str) -> list[int]:
    """Where fences of anything but data begin and end, in turn."""
    edges: list[int] = []
    label: str | None = None
    for fence in _FENCE.finditer(text):
        if label is None:
            label = fence[1].lower()
            edges += [] if label in _DATA else [fence.start()]
        elif not fence[1]:
            edges += [] if label in _DATA else [fence.start()]
            label = None
    return edges


def _closed(text: str, at: int) -> int:
    """The end of the object that begins at a place; that of the text if it has none."""
    depth = 0
    for token in _TOKEN.finditer(text, at):
        if token[0] in "[{":
            depth += 1
        elif token[0] in "]}":
            depth -= 1
            if depth <= 0:
                return token.end()
    return len(text)
