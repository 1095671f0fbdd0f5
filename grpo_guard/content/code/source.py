"""The text of a program, with positions, and a parser-free scan for comments and nesting.

The scan runs before the parser and limits what the parser gets: CPython's parser and AST recurse in
C, and 10^5 nested brackets must never reach them.
"""

from __future__ import annotations

import ast
import re
from array import array
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Final

_NEWLINE: Final = re.compile(r"\r\n|\r|\n")
# Possessive throughout: an unclosed string ends with the line or the text and never backtracks.
_TEXTS: Final = (
    r"(?P<comment>\#[^\r\n]*+)"
    r'|"""(?:[^\\"]|\\.|"(?!""))*+(?:"""|\\?\Z)|\'\'\'(?:[^\\\']|\\.|\'(?!\'\'))*+(?:\'\'\'|\\?\Z)'
    r'|"(?:[^\\"\r\n]|\\.)*+"?|\'(?:[^\\\'\r\n]|\\.)*+\'?'
)
_SCAN_COMMENTS: Final = re.compile(_TEXTS, re.S)
_SCAN: Final = re.compile(_TEXTS + r"|(?P<open>[(\[{])|(?P<close>[)\]}])", re.S)
# Right-recursive chains make the parser recurse without brackets: unary operators, lambda, await.
_CHAIN: Final = re.compile(
    r"(?:[-+~][ \t\\\r\n]*+){60}|(?:\bnot\s++){60}|(?:\blambda\b[^:\n]{0,20}+:\s*+){40}"
    r"|(?:\bawait\s++){40}"
)
FEW_BRACKETS: Final = 60


def _utf8_bytes(character: str) -> int:
    code = ord(character)
    return 1 if code < 0x80 else 2 if code < 0x800 else 3 if code < 0x10000 else 4


class Source:
    """The text of a block of code, with its comments and nesting depth.

    Args:
        text: The text as written in the completion.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.comments: list[tuple[int, int]] = []
        self.depth = 0
        # Byte offsets of characters, computed once per line because it can hold thousands of nodes.
        self._bytes: dict[int, array[int] | None] = {}
        # With fewer brackets than the limit, nesting cannot exceed it.
        brackets = text.count("(") + text.count("[") + text.count("{")
        if brackets > FEW_BRACKETS:
            self._scan(_SCAN)
        elif "#" in text:
            self._scan(_SCAN_COMMENTS)

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(m.end() for m in _NEWLINE.finditer(self.text))]

    def _scan(self, pattern: re.Pattern[str]) -> None:
        depth = 0
        for match in pattern.finditer(self.text):
            if match.lastgroup == "comment":
                self.comments.append(match.span())
            elif match.lastgroup == "open":
                depth += 1
                self.depth = max(self.depth, depth)
            elif match.lastgroup == "close":
                depth = max(0, depth - 1)

    @property
    def chained(self) -> bool:
        """Whether operators or keywords are chained more deeply than anyone would write."""
        text = self.text
        signs = text.count("-") + text.count("+") + text.count("~")
        words = max(text.count("not"), text.count("lambda"), text.count("await"))
        if signs < 60 and words < 40:
            return False
        return _CHAIN.search(text) is not None

    def offset(self, line: int, column: int) -> int:
        """Return the offset of AST coordinates: ``line`` from 1, ``column`` in UTF-8 bytes."""
        if not 1 <= line <= len(self._starts):
            return len(self.text) if line > 1 else 0
        start = self._starts[line - 1]
        end = self._starts[line] if line < len(self._starts) else len(self.text)
        if line not in self._bytes:
            content = self.text[start:end]
            widths = None if content.isascii() else map(_utf8_bytes, content)
            self._bytes[line] = None if widths is None else array("L", accumulate(widths))
        before = self._bytes[line]
        return min(start + (column if before is None else bisect_right(before, column)), end)

    def span(self, node: ast.AST, shift: int = 0) -> tuple[int, int]:
        """Return the span of a node; ``shift`` lines were prepended to make the text parse."""
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        last = getattr(node, "end_lineno", None) or line
        end_column = getattr(node, "end_col_offset", None) or column
        start = self.offset(line - shift, column)
        return start, max(start, self.offset(last - shift, end_column))


@dataclass(frozen=True, slots=True)
class Note:
    """An observation about a block; ``start`` and ``end`` are character offsets in that block."""

    kind: str
    message: str
    start: int
    end: int
