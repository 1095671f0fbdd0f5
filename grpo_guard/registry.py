"""Names for verifiers and attacks, loaded on first use.

Built-in names and those of other packages come from the same place: the entry-point groups
``grpo_guard.verifiers`` and ``grpo_guard.attacks``, whose targets are ``module:Class``.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from grpo_guard.redaction import hidden, secrets_in

VERIFIERS = "grpo_guard.verifiers"
ATTACKS = "grpo_guard.attacks"


class UnknownNameError(LookupError):
    """Nothing is registered under this name."""


def names(group: str) -> list[str]:
    """Everything that is registered in a group, sorted."""
    return sorted(_entries(group))


def load(group: str, name: str) -> Any:
    """The class registered under a name.

    Raises:
        UnknownNameError: with the names that exist, and the nearest one.
    """
    entries = _entries(group)
    return entries[choose(sorted(entries), name)].load()


def choose(known: Collection[str], name: str) -> str:
    """``name``, if it is among those that are known.

    Raises:
        UnknownNameError: with the names that exist, and the nearest one.
    """
    if name not in known:
        nearest = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        # A quotation mark that closes late makes the rest of a line, keys and all, part of a name.
        got = hidden(name, secrets_in(name))
        raise UnknownNameError(f"expected one of {', '.join(known)}, got {got!r:.200}{hint}")
    return name


def _entries(group: str) -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=group)}
