"""Excerpts of hostile texts, safe for a person to look at.

A stranger's completion can contain markup, terminal escapes, characters that are invisible or
reorder the line, and a megabyte of padding around the part that matters. `excerpt` keeps the text
around that part and names every character that would not be visible; the caller gets plain, visible
pieces, which it must escape for HTML or a terminal.
"""

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

from grpo_guard.core.prompts import Message

Span: TypeAlias = tuple[int, int]

LIMIT = 1200
_BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0\u034f\u17b4\u17b5\u180b\u180c\u180d\u180f")
_MAX_STACKED = 2  # natural text rarely stacks more than two combining marks; "zalgo" stacks dozens


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of characters with the same marks.

    ``poison``: in the span that the attack inserted; ``evidence``: in a span that the verifier
    found; ``hidden``: the text is the name of an invisible character, as in ``U+202E``; ``cut``:
    the text replaces a part that was left out.
    """

    text: str
    poison: bool = False
    evidence: bool = False
    hidden: bool = False
    cut: bool = False


def excerpt(
    text: str,
    poison: Span | None = None,
    evidence: Sequence[Span] = (),
    *,
    limit: int = LIMIT,
) -> list[Piece]:
    """Cut ``text`` to ``limit`` characters around its poison or evidence, and mark both."""
    focus = poison or (evidence[0] if evidence else (0, 0))
    start, end = window(len(text), focus, limit)
    in_poison = _covered(start, end, [poison] if poison else [])
    in_evidence = _covered(start, end, evidence)
    shown = zip(_visible(text[start:end]), in_poison, in_evidence, strict=True)
    pieces = [
        Piece("".join(char for (char, _), *_ in run), is_poison, is_evidence, is_hidden)
        for (is_poison, is_evidence, is_hidden), run in groupby(
            shown, key=lambda item: (item[1], item[2], item[0][1])
        )
    ]
    if start:
        pieces.insert(0, Piece(f"[{start:,} characters before]", cut=True))
    if end < len(text):
        pieces.append(Piece(f"[{len(text) - end:,} characters after]", cut=True))
    return pieces


def visible(text: object, *, limit: int = 300) -> str:
    """Make a string safe to show: name hidden characters, and cut off the end if it is long."""
    return "".join(
        f"<{piece.text}>" if piece.hidden else piece.text
        for piece in excerpt(str(text), limit=limit)
    )


def asked(prompt: str | Sequence[Message]) -> str:
    """Format a prompt for display: each message gets its own line, with its role."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(f"{message['role']}: {message.get('content', '')}" for message in prompt)


def window(length: int, focus: Span, limit: int) -> Span:
    """Return the [start, end) to keep, with a third of ``limit`` as context before the focus."""
    if length <= limit:
        return 0, length
    start = max(0, min(focus[0] - limit // 3, length - limit))
    return start, start + limit


def _covered(start: int, end: int, spans: Iterable[Span]) -> list[bool]:
    marks = [False] * (end - start)
    for low, high in spans:
        for at in range(max(low, start), min(high, end)):
            marks[at - start] = True
    return marks


def _visible(text: str) -> Iterable[tuple[str, bool]]:
    """Yield each character as it is shown, and whether a name replaces the character."""
    stacked = 0
    for char in text:
        stacked = stacked + 1 if unicodedata.category(char) in ("Mn", "Me") else 0
        is_hidden = _is_hidden(char) or stacked > _MAX_STACKED
        yield (f"U+{ord(char):04X}" if is_hidden else char), is_hidden


def _is_hidden(char: str) -> bool:
    if char in " \n\t":
        return False
    if char in _BLANK or 0xFE00 <= ord(char) <= 0xFE0F or 0xE0100 <= ord(char) <= 0xE01EF:
        return True
    # Controls, formats (bidi, zero width, tags), surrogates, private, unassigned; odd separators.
    return unicodedata.category(char)[0] in "CZ"
