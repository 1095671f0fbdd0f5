"""What a check says about one place in a program."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Note:
    """One observation; ``start`` and ``end`` are characters of the block it was made in."""

    kind: str
    message: str
    start: int
    end: int


def words(text: str) -> frozenset[str]:
    """The blank-separated words of ``text``."""
    return frozenset(text.split())
