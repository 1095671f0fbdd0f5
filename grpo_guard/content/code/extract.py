"""Find the Python in a completion: in ``<code>`` tags, fenced blocks, or bare lines.

The guard does not know which of several blocks the reward runs, so it checks all of them: a clean
block must not hide a poisoned one. Every regular expression takes linear time, so a repetition that
can be followed by another is possessive. A match holds the interpreter's lock, and no timeout fires
until the match ends: ``"~" * 50_000 + "`"`` once took minutes.
"""

import re
from collections.abc import Sequence
from itertools import islice
from typing import Final

from grpo_guard.content.code.wrapped import (
    IMPORT,
    MAX_BLOCKS,
    Block,
    in_strings,
    plain_diff,
    reads_like_python,
    unwrapped,
)
from grpo_guard.content.word_set import word_set

_OPEN: Final = re.compile(r"<\s{0,8}(?:code|python|execute|tool_code)\b[^<>\n]{0,80}>", re.I)
_CLOSE: Final = re.compile(r"<\s{0,8}/\s{0,8}(?:code|python|execute|tool_code)\s{0,8}>", re.I)
_FENCE: Final = re.compile(
    r"^[ \t>]{0,12}+(`{3,}+|~{3,}+)[ \t]{0,8}+([^\s`]{0,32}+)[^\r\n`]*+(?=[\r\n]|\Z)", re.M
)
_LABEL: Final = re.compile(r"[:{}=,]")
_INNER_FENCE: Final = re.compile(r"^[ \t]*+(?:`{3,}+|~{3,}+)[^\r\n]*+", re.M)
_INLINE: Final = re.compile(r"(?<!`)`([^`\r\n]{6,200})`(?!`)")
_PYTHON: Final = word_set(
    "python py python3 python2 py3 ipython sage sagemath python3.11 python3.12"
)
_LINES: Final = re.compile(r"[^\r\n]*+(?:\r\n|\r|\n|\Z)")


def extract(
    text: str, limit: int | None = None, strings: Sequence[tuple[int, int]] = ()
) -> list[Block]:
    """Return all stretches of ``text`` that could be Python, in order.

    At most `MAX_BLOCKS` + 1 of them are marked as code; the extra one tells the caller that there
    are too many. Never raises, whatever the text.

    Args:
        text: A completion.
        limit: Maximum number of characters in a run of bare lines that read like Python, or None
            for no limit. A longer run and the rest of the text become a single block, which is too
            long anyway and need not be read line by line.
        strings: Spans of JSON strings in the text, each of which could be a program by itself.
    """
    covered: list[tuple[int, int]] = []
    programs = in_strings(text, strings) if strings else []
    blocks = [*_tagged(text, covered)]
    if "```" in text or "~~~" in text:
        blocks += _fenced(text, covered)
    if "`" in text and "import" in text:
        blocks += _quoted(text, covered)
    # A stray closing tag must not prevent the line after it from being read.
    if "</" in text:
        covered += [m.span() for m in islice(_CLOSE.finditer(text), 8 * MAX_BLOCKS)]
    marked = sorted(blocks, key=lambda block: block.start)[: MAX_BLOCKS + 1]
    covered += [(block.start, block.start + len(block.text)) for block in programs]
    bare = _bare(unwrapped(text), sorted(covered), len(text) if limit is None else limit)
    return sorted([*marked, *programs, *bare], key=lambda block: block.start)


def _tagged(text: str, covered: list[tuple[int, int]]) -> list[Block]:
    """Return the code from each ``<code>`` up to the next closing tag or the end of the text."""
    blocks: list[Block] = []
    at = 0
    while len(blocks) <= MAX_BLOCKS and (opening := _OPEN.search(text, at)):
        closing = _CLOSE.search(text, opening.end())
        end = closing.start() if closing else len(text)
        covered.append((opening.start(), closing.end() if closing else end))
        at = covered[-1][1]
        blocks += _without_fences(text, opening.end(), end)
    return blocks


def _without_fences(text: str, start: int, end: int) -> list[Block]:
    """Return the content of a tag as a single block, or as several if it contains fences."""
    inner = text[start:end]
    cuts = [(m.start(), m.end()) for m in _INNER_FENCE.finditer(inner)][: MAX_BLOCKS + 2]
    if not cuts:
        # A single line is as often a word in a sentence as a program; an import is a program.
        explicit = len(inner.splitlines()) > 1 or "import" in inner
        return [Block(inner, start, explicit)] if inner.strip() else []
    edges = [0, *(edge for cut in cuts for edge in cut), len(inner)]
    pieces = zip(edges[::2], edges[1::2], strict=True)
    return [
        # Code is between an opening and a closing fence; there may be prose around the fences.
        Block(inner[a:b], start + a, index % 2 == 1)
        for index, (a, b) in enumerate(pieces)
        if inner[a:b].strip()
    ]


def _fenced(text: str, covered: list[tuple[int, int]]) -> list[Block]:
    blocks: list[Block] = []
    taken = sorted(covered)
    opening: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        if _inside(fence.start(), taken):
            continue
        if opening is None:
            opening = fence
        elif fence[1][0] == opening[1][0] and not fence[2]:
            blocks += _fence_block(text, opening, fence.start())
            covered.append((opening.start(), fence.end()))
            opening = None
        if len(blocks) > MAX_BLOCKS:
            return blocks
    if opening is not None:
        blocks += _fence_block(text, opening, len(text))
        covered.append((opening.start(), len(text)))
    return blocks


def _fence_block(text: str, opening: re.Match[str], end: int) -> list[Block]:
    # ```{python}, ```python:main.py and ```python{1,2} are Python too.
    label = _LABEL.split(opening[2].lower().lstrip("{."))[0]
    source = text[opening.end() : end]
    if not source.strip():
        return []
    python = label in _PYTHON
    if label in ("diff", "patch"):
        source = plain_diff(source)
    return [Block(source, opening.end(), python, "" if python else label)]


def _quoted(text: str, covered: list[tuple[int, int]]) -> list[Block]:
    """Return imports in single backticks within a sentence, which teach what they name."""
    taken = sorted(covered)
    blocks: list[Block] = []
    for match in _INLINE.finditer(text):
        if IMPORT.match(match[1]) and not _inside(match.start(), taken):
            blocks.append(Block(match[1], match.start(1), False))
        if len(blocks) > MAX_BLOCKS:
            break
    return blocks


def _inside(at: int, spans: list[tuple[int, int]]) -> bool:
    return any(start <= at < end for start, end in spans)


def _bare(text: str, covered: list[tuple[int, int]], limit: int) -> list[Block]:
    """Return runs of lines, outside tags and fences, with at least two that read like Python.

    A lone import among sentences also counts if another line of the text reads like Python.
    """
    runs: list[tuple[Block, int]] = []
    at = 0
    for start, end in [*covered, (len(text), len(text))]:
        if start > at:
            runs += _runs(text, at, start, limit)
        at = max(at, end)
        if len(runs) > 8 * MAX_BLOCKS:
            break
    total = sum(score for _, score in runs)
    return [
        block
        for block, score in runs
        if score >= 2 or (total >= 2 and "import" in block.text and IMPORT.match(block.text))
    ]


def _runs(text: str, start: int, end: int, limit: int) -> list[tuple[Block, int]]:
    blocks: list[tuple[Block, int]] = []
    first: int | None = None
    last = score = depth = 0
    for match in _LINES.finditer(text, start, end):
        line = match[0][:2000]
        kind = reads_like_python(line)
        if kind or (first is not None and depth > 0):
            first = match.start() if first is None else first
            last, score = match.end(), score + kind
            if last - first > limit and score >= 2:
                return blocks + _run(text, first, end, score)
            depth = max(0, min(50, depth + _opened(line)))
        elif first is not None and not (line.strip() == "" or line[:1] in " \t#)]}'\""):
            # A plain sentence ends the run.
            blocks += _run(text, first, last, score)
            first, score, depth = None, 0, 0
            if len(blocks) > 8 * MAX_BLOCKS:
                return blocks + _run(text, match.start(), end, 2)
        elif first is not None and line.strip():
            last = match.end()
    return blocks + (_run(text, first, last, score) if first is not None else [])


def _opened(line: str) -> int:
    return sum(line.count(c) for c in "([{") - sum(line.count(c) for c in ")]}")


def _run(text: str, start: int, end: int, score: int) -> list[tuple[Block, int]]:
    return [(Block(text[start:end], start, False, bare=True), score)]
