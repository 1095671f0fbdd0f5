"""The text of a program, with positions, and its AST, or the reason why there is none.

A parser-free scan for comments and nesting limits what the parser gets: CPython's parser and AST
recurse in C, and 10^5 nested brackets must never reach them.

`ast.parse` only builds a tree: no bytecode, no constant folding, no import. If it fails, Python 2's
print and any syntax newer than the interpreter are rewritten for a second attempt, so that the same
program gets the same verdict on every Python version; rewriting preserves lines and columns.
"""

import ast
import re
import warnings
from array import array
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from grpo_guard.core.cached_property import cached_property
from grpo_guard.core.forks import Lock

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
    return 1 + (code >= 0x80) + (code >= 0x800) + (code >= 0x10000)


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


MAX_DEPTH: Final = 60

_lock = Lock()  # warnings.catch_warnings changes state shared by all threads

# Possessive repetitions, so that "print a", 8000 blanks and "b" are not read 8000 times.
_PRINT: Final = re.compile(
    r"^([ \t]*+(?:[^\s#'\"][^\r\n'\"#]{0,80}:[ \t]++)?)print[ \t]++(?![(=.,:+*/-])([^\r\n]++)", re.M
)
_ALIAS: Final = re.compile(
    r"^([ \t]*+)type[ \t]++(\w++)[ \t]*+(?:\[[^\]\r\n]{0,200}\][ \t]*+)?=", re.M
)
_GENERIC: Final = re.compile(
    r"^([ \t]*+(?:async[ \t]++)?(?:def|class)[ \t]++\w++)(\[[^\]\r\n]{0,200}\])", re.M
)
_PIP: Final = re.compile(
    r"^[ \t]*+[!%][ \t]*+pip3?[ \t]++install\b[^\r\n\\;&|`$<>]*+(?=[\r\n]|\Z)", re.M
)
_FIELD: Final = re.compile(r"\{[^{}\r\n]{1,300}\}")
_FSTRING: Final = re.compile(r"\b(?:[fF][rR]?|[rR][fF])(?=[\"'])")
# A first line of operators alone, such as a table border, which never parses as Python.
_DRAWN: Final = re.compile(r"\s*+[-+|=<>^~*/][-+|=<>^~*/ \t]*+[\r\n]")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Parsed:
    """The outcome of parsing: a tree, or the reason why there is none.

    Args:
        tree: The syntax tree, or None if the text does not parse.
        problem: Why the text does not parse, in words; empty if it does.
        too_deep: Whether the text is nested so deeply that it was never passed to the parser.
        shift: Number of lines prepended to the text to make it parse.
    """

    tree: ast.Module | None
    problem: str = ""
    too_deep: bool = False
    shift: int = 0


def parse(source: Source) -> Parsed:
    """Parse the text of a block. Never raises, whatever the text."""
    if source.depth > MAX_DEPTH or source.chained:
        # In a session only the lines after ">>>" run, whatever comes before them.
        if _DRAWN.match(source.text) and ">>>" not in source.text:
            return Parsed(None, "it is a drawing")
        return Parsed(None, "it is nested more deeply than programs are", too_deep=True)
    text = _SURROGATE.sub("\ufffd", source.text).replace("\x00", " ")
    text = " " + text[1:] if text.startswith("\ufeff") else text
    first = next((line for line in text.splitlines() if line.strip()), "")
    if first[:1] in (" ", "\t") and not first.lstrip().startswith("#"):
        # A program indented as a whole; try without the shift first, because it could parse.
        indented = _attempt(text, 0)
        if indented.tree is None:
            shifted = _attempt("if 1:\n" + text, 1)
            return shifted if shifted.tree is not None else _repaired(text, indented)
        return indented
    return _repaired(text, _attempt(text, 0))


def _repaired(text: str, parsed: Parsed) -> Parsed:
    if parsed.tree is not None:
        return parsed
    session = ">>>" in text
    for repair in (_installing, _session if session else _newer_syntax, _older_print):
        text = repair(text)
    again = _attempt("if 1:\n" + text, 1) if session else _attempt(text, 0)
    return again if again.tree is not None else parsed


def _attempt(text: str, shift: int) -> Parsed:
    try:
        with _lock, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # under -W error a warning would look like broken code
            tree = ast.parse(text)
    # MemoryError: the parser's own stack is full. That is the text's fault, not ours, because
    # the text is bounded. SystemError: on some Python versions the parser loses track of its
    # depth after one of the others.
    except (
        SyntaxError, ValueError, RecursionError, MemoryError, OverflowError, SystemError,
    ) as error:  # fmt: skip
        return Parsed(None, f"{type(error).__name__}: {getattr(error, 'msg', error)!s:.120}")
    if shift and isinstance(tree.body[0], ast.If):
        tree.body = tree.body[0].body
    return Parsed(tree, shift=shift)


def _installing(text: str) -> str:
    """Comment out a notebook's ``!pip install``, whose packages are checked separately."""
    return _PIP.sub(lambda m: "#" * len(m[0]), text)


def _session(text: str) -> str:
    """Keep what was typed at the prompt and drop the interpreter's output."""
    lines = text.split("\n")
    typed = [line.lstrip(" \t").startswith((">>>", "...")) for line in lines]
    return "\n".join(
        line.replace(">>>", "   ", 1).replace("...", "   ", 1) if code else ""
        for line, code in zip(lines, typed, strict=True)
    )


def _newer_syntax(text: str) -> str:
    """Rewrite type aliases and parameters (PEP 695) and quotes reused in f-strings (PEP 701)."""
    text = _ALIAS.sub(lambda m: (m[1] + m[2]).ljust(len(m[0]) - 1) + "=", text)
    text = _GENERIC.sub(lambda m: m[1] + " " * len(m[2]), text)
    lines = text.split("\n")
    for at, line in enumerate(lines):
        match = _FSTRING.search(line) if len(line) < 2000 else None
        if match:
            # Inside the fields, replace the string's own quotes with the other kind.
            own = line[match.end()]
            other = "'" if own == '"' else '"'
            lines[at] = _FIELD.sub(lambda m, o=own, n=other: m[0].replace(o, n), line)  # type: ignore[misc]
    return "\n".join(lines)


def _older_print(text: str) -> str:
    return _PRINT.sub(lambda m: f"{m[1]}print({m[2].rstrip().rstrip(',')})", text)
