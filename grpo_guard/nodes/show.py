"""A ledger as it lies on disk, read without writing to it."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_guard.nodes.intake import name_bytes
from grpo_guard.nodes.report import Standing, SybilHint, standings, sybil_hints
from grpo_guard.nodes.rounds import read_meta
from grpo_guard.nodes.schema import LedgerError, checked_book, connect, transaction


@dataclass(frozen=True, slots=True)
class Shown:
    """Nodes, the worst first; phrases that several share; what else a reader must know."""

    rounds: int
    nodes: list[Standing]
    hints: list[SybilHint]
    notes: list[str]

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "rounds": self.rounds,
            "nodes": [node.to_dict() for node in self.nodes],
            "shared_phrases": [hint.to_dict() for hint in self.hints],
            "notes": self.notes,
        }


def read(path: Path, node: str | None = None, *, book: str = "") -> Shown:
    """Everything in a ledger, or one node, in one snapshot.

    Raises:
        LedgerError: it is none, cannot be read, or has no such node.
        ValueError: ``book`` cannot be one's name.
    """
    book = checked_book(book)
    try:
        connection = connect(path, seconds=5.0, create=False, book=book)
        try:
            with transaction(connection, "BEGIN"):
                return _read(connection, path, node)
        finally:
            connection.close()
    except LedgerError:
        raise
    except Exception as error:  # odd values in the file fail in ways of their own
        raise LedgerError(f"{path}: expected a readable ledger, got: {error!s:.200}") from None


def _read(connection: sqlite3.Connection, path: Path, node: str | None) -> Shown:
    name = None if node is None else name_bytes(node)
    # Levels are stored as they were when renewed, with the half-life of whoever wrote them.
    half_life = read_meta(connection, "half_life_thousandths") / 1000 or 50.0
    nodes = standings(connection, half_life, name)
    if node is not None and not nodes:
        raise LedgerError(f"{path}: expected a node of the ledger, got {node[:80]!r}")
    hints = [
        hint
        for hint in sybil_hints(connection)
        if node is None or (nodes and nodes[0].node in hint.nodes)
    ]
    says = {
        "nameless": "completions without a node",
        "uncounted": "completions of nodes beyond the limit of names",
        "lost": "batches lost while the ledger could not be written",
    }
    counts = {key: read_meta(connection, key) for key in says}
    notes = [f"{counts[key]:,} {says[key]}" for key in says if counts[key]]
    (last,) = connection.execute("SELECT coalesce(max(clock), -1) FROM @clock").fetchone()
    if last >= 0:
        judged = read_meta(connection, "judged") + 1
        notes.append(f"{last + 1:,} rounds, {judged:,} judged; a round is judged two rounds later")
    return Shown(last + 1, nodes, hints, notes)
