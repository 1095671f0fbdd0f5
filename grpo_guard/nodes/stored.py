"""Read and change the memories in a store from outside, while a run may be using them."""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from grpo_guard.nodes.memory import MAX_STATE
from grpo_guard.nodes.schema import LedgerError, opened

_PATIENCE: Final = 30.0
_TABLE: Final = "SELECT 1 FROM sqlite_master WHERE name = 'memories'"
# Not those that another guard could not read, which are only kept.
_STATES: Final = (
    "SELECT name, state FROM memories WHERE name GLOB ? AND name NOT GLOB '*_unread_*' "
    "AND length(state) <= ?"
)
_WRITE: Final = "UPDATE memories SET version = ?, state = ? WHERE name = ?"


def stored_states(path: Path, name: str) -> dict[str, Any]:
    """Return the states of all memories whose names begin with ``name``, by name; raises
    LedgerError if the file cannot be read."""
    with opened(path, "a readable store", seconds=5.0, create=False) as connection:
        return _states(connection, name)


def change_states(path: Path, name: str, change: Callable[[Any], bool]) -> bool:
    """Change the states of all memories whose names begin with ``name``.

    Running guards load the changed states at their next batch.

    Args:
        path: The store's file.
        name: The beginning of the memories' names.
        change: Changes a state in place and returns whether it did.

    Raises:
        LedgerError: the file is missing, or cannot be read or written.
    """
    if not path.is_file():
        raise LedgerError(f"{path}: expected a ledger, got no such file")
    writable = "a store that can be written"
    with opened(path, writable, seconds=_PATIENCE, create=True) as connection:
        changed = {key: state for key, state in _states(connection, name).items() if change(state)}
        for key, state in changed.items():
            row = (secrets.randbits(62), json.dumps(state, separators=(",", ":")), key)
            connection.execute(_WRITE, row)
        return bool(changed)


def _states(connection: sqlite3.Connection, name: str) -> dict[str, Any]:
    if connection.execute(_TABLE).fetchone() is None:
        return {}
    rows = connection.execute(_STATES, (f"{name}*", MAX_STATE)).fetchall()
    return {key: json.loads(state) for key, state in rows}
