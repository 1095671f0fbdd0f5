"""Sets of names, written as words."""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    """The blank-separated words of ``text``."""
    return frozenset(text.split())
