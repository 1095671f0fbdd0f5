"""Log which nodes were convicted and which were released."""

from __future__ import annotations

import logging
import shlex
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final, TypeAlias

from grpo_guard.core.quoting import shown

logger = logging.getLogger("grpo_guard")

MOST: Final = 20
"""Maximum number of nodes named per round and kind of change, so that a flood of invented names
cannot fill the log."""


@dataclass(frozen=True, slots=True)
class Changes:
    """The nodes that became hard and the nodes that are no longer hard: at most `MOST` names of
    each kind, and the total number of nodes of each kind."""

    hard: tuple[str, ...]
    clear: tuple[str, ...]
    hards: int
    clears: int


OnChanges: TypeAlias = Callable[[Changes], None]
"""Function that is called with the changes of each round in which anything changed."""


def changes_of(
    connection: sqlite3.Connection, hard: Sequence[int], clear: Sequence[int]
) -> Changes:
    """Look up the names of the changed nodes by id."""
    return Changes(_names(connection, hard), _names(connection, clear), len(hard), len(clear))


def _names(connection: sqlite3.Connection, nodes: Sequence[int]) -> tuple[str, ...]:
    query = "SELECT name FROM nodes WHERE id = ?"
    rows = (connection.execute(query, (node,)).fetchone() for node in islice(sorted(nodes), MOST))
    return tuple(row[0].decode("utf-8", "backslashreplace") for row in rows if row)


def warn(changes: Changes, path: Path) -> None:
    """Log one warning for each named node, plus one covering all other nodes, with the command that
    shows the evidence."""
    command = f"grpo-guard ledger show {shlex.quote(str(path))}"
    for names, count, what in (
        (changes.hard, changes.hards, "is convicted: its completions are rejected from now on"),
        (changes.clear, changes.clears, "is released: its completions are judged like all others"),
    ):
        for name in names:
            logger.warning("node %s %s; %s", shown(name), what, command)
        if count > len(names) > 0:
            logger.warning("%d more nodes: each %s; %s", count - len(names), what, command)
