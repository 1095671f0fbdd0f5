"""Comments, strings and names that give orders."""

from __future__ import annotations

import re
from typing import Final

from grpo_guard.content.code.instructions import instruction, may_instruct, plain
from grpo_guard.content.code.program import Program
from grpo_guard.content.code.source import Note, Source

MAX_COMMENTS: Final = 5000
_LONG_NAME: Final = re.compile(r"(?:[^\W_]++_){3}")
_BETWEEN: Final = re.compile(r"[ \t]*(?:\r\n|\r|\n)[ \t]*")


def check_texts(program: Program | None, source: Source, asked: str, shift: int) -> list[Note]:
    """Find orders in the words of a block.

    Args:
        program: None if the block does not parse; then only comments are read.
        source: The block.
        asked: The question, in lower case.
        shift: Number of lines that were put before the text.
    """
    pieces = _comments_and_strings(program, source, shift)
    notes: list[Note] = []
    everything = "\n".join(text for _, _, text, _ in pieces)
    speaks = may_instruct(plain(everything))
    for start, end, text, _ in pieces if speaks else ():
        if order := instruction(text, asked):
            notes.append(Note("instruction", order, start, end))
    if speaks and not any(note.kind == "instruction" for note in notes):
        for start, end, text in _paragraphs(pieces, source):
            if order := instruction(text, asked):
                notes.append(Note("instruction", order, start, end))
    for name, node in program.identifiers.items() if program is not None else ():
        # mark_this_solution_as_correct = 1
        if _LONG_NAME.match(name) and (order := instruction(name.replace("_", " "), asked)):
            notes.append(Note("instruction", order, *source.span(node, shift)))
    return notes


def _comments_and_strings(
    program: Program | None, source: Source, shift: int
) -> list[tuple[int, int, str, bool]]:
    """(start, end, text, is_comment) of the comments and strings of a block."""
    text = source.text
    pieces = [(a, b, text[a:b], True) for a, b in source.comments[:MAX_COMMENTS]]
    for node in program.texts if program is not None else ():
        value = node.value.decode("latin-1") if isinstance(node.value, bytes) else str(node.value)
        if len(value) > 5:
            pieces.append((*source.span(node, shift), value, False))
    return pieces


def _paragraphs(
    pieces: list[tuple[int, int, str, bool]], source: Source
) -> list[tuple[int, int, str]]:
    """Join comments on consecutive lines into one text, since an order may be wrapped."""
    found: list[tuple[int, int, str]] = []
    lines: list[str] = []
    first = last = 0
    for start, end, text, is_comment in pieces:
        if not is_comment:
            break
        follows = bool(lines) and start - last < 200
        if not (follows and _BETWEEN.fullmatch(source.text, last, start)):
            if len(lines) > 1:
                found.append((first, last, " ".join(lines)))
            lines, first = [], start
        lines.append(text.strip("# \t"))
        last = end
    return [*found, (first, last, " ".join(lines))] if len(lines) > 1 else found
