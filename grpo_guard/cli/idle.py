"""Report once per file which verifiers have nothing to do because the file lacks a field."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from grpo_guard.cli.formats import listed
from grpo_guard.guard.idle import idle_without

if TYPE_CHECKING:
    from grpo_guard.cli.rows import Rows
    from grpo_guard.guard import Guard


def idle_notes(guard: Guard, rows: Rows, source: Path, left_out: list[str]) -> list[str]:
    """Return a note for each field that verifiers need but no row has. The guard's own warning,
    which sees only one batch and no columns, is disabled.

    Args:
        guard: The guard that verifies the file.
        rows: Rows of the file.
        source: Name of the file.
        left_out: Columns of the file that no field was read from.
    """
    guard.idle.mute()
    idle = idle_without(guard.verifier)
    if guard.ledger is not None and "node" in idle:
        idle["node"].append("the ledger records nobody")
    others = f" (not read: {listed(left_out)})" if left_out else ""
    return [
        f"no row of {source} has {field!r}, so {'; '.join(what)}. If one of its columns holds it"
        f"{others}: --map {field}=COLUMN"
        for field, what in idle.items()
        if field not in rows.sent and len(rows)
    ]
