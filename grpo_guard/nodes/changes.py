"""Log which nodes were convicted and which were released."""

import logging
import shlex
import sqlite3
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from grpo_guard.core.quoting import shown_name

logger = logging.getLogger("grpo_guard")

MOST: Final = 20
"""Maximum number of nodes named per round and kind of change, so that a flood of invented names
cannot fill the log."""


def warn(
    connection: sqlite3.Connection, path: Path, hard: Sequence[int], clear: Sequence[int]
) -> None:
    """Log the nodes, by id, that became hard and those that are no longer hard: one warning for
    each of the first `MOST` of a kind, plus one covering all others, with the command that shows
    the evidence in the ledger at ``path``."""
    command = f"grpo-guard ledger show {shlex.quote(str(path))}"
    for nodes, what in (
        (hard, "is convicted: its completions are rejected from now on"),
        (clear, "is released: its completions are judged like all others"),
    ):
        names = _names(connection, nodes)
        for name in names:
            logger.warning("node %s %s; %s", shown_name(name), what, command)
        if len(nodes) > len(names) > 0:
            logger.warning("%d more nodes: each %s; %s", len(nodes) - len(names), what, command)


def _names(connection: sqlite3.Connection, nodes: Sequence[int]) -> tuple[str, ...]:
    query = "SELECT name FROM nodes WHERE id = ?"
    rows = (connection.execute(query, (node,)).fetchone() for node in islice(sorted(nodes), MOST))
    return tuple(row[0].decode("utf-8", "backslashreplace") for row in rows if row)
