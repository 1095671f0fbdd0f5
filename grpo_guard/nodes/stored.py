"""Read and change the memories in a store from outside, while a run may be using them."""

import json
import secrets
import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from grpo_guard.nodes.intake import meant, name_bytes
from grpo_guard.nodes.memory import HAS_MEMORIES, MAX_STATE
from grpo_guard.nodes.schema import opened

# Not those that another guard could not read, which are only kept.
_STATES: Final = (
    "SELECT name, state FROM memories WHERE name GLOB ? AND name NOT GLOB '*_unread_*' "
    "AND length(state) <= ?"
)
_WRITE: Final = "UPDATE memories SET version = ?, state = ? WHERE name = ?"


def stored_states(path: Path, name: str) -> dict[str, Any]:
    """Return the states of all memories whose names begin with ``name``, by name; raises
    LedgerError if the file cannot be read."""
    with opened(path, "a readable store") as connection:
        return _states(connection, name)


def change_states(path: Path, name: str, change: Callable[[Any], bool]) -> bool:
    """Change the states of all memories whose names begin with ``name``; running guards load them
    at their next batch. ``change`` modifies a state in place and returns whether it did. Raises
    LedgerError if the file is missing, or cannot be read or written."""
    with opened(path, "a store that can be written", write=True) as connection:
        changed = {key: state for key, state in _states(connection, name).items() if change(state)}
        for key, state in changed.items():
            row = (secrets.randbits(62), json.dumps(state, separators=(",", ":")), key)
            connection.execute(_WRITE, row)
        return bool(changed)


def counting_rules(path: Path) -> list[str]:
    """Return the names of the rules in a store that have counted findings of any node; raises
    LedgerError if the file cannot be read."""
    states = stored_states(path, "")
    return sorted(name for name, state in states.items() if _e_processes(state))


def release_counts(path: Path, node: bytes) -> bool:
    """Forget what counting rules have counted about one node, by its stored name; return whether
    any of them knew it. Raises LedgerError as `change_states` does."""

    def forget(state: Any) -> bool:
        known = _e_processes(state)
        kept = [row for row in known if not is_stored_as(row[0], node)]
        if len(kept) < len(known):
            state["nodes"] = kept
        return len(kept) < len(known)

    return change_states(path, "", forget)


def is_stored_as(name: Any, stored: bytes) -> bool:
    """Whether the node of this name in a state is the one that a ledger stores like this."""
    return isinstance(name, str) and name_bytes(name) == stored


def named(names: Iterable[str], node: str) -> list[str]:
    """Return those of a state's names that an operator's ``node`` means; see `meant`."""
    known = list(names)
    stored = meant(node, lambda: map(name_bytes, known))
    return [name for name in known if stored is not None and is_stored_as(name, stored)]


def _e_processes(state: Any) -> list[Any]:
    """Return the rows [name, ...] of an `EProcessMemory`; [] for the state of another memory."""
    nodes = state.get("nodes") if isinstance(state, dict) else None
    return nodes if isinstance(nodes, list) else []


def _states(connection: sqlite3.Connection, name: str) -> dict[str, Any]:
    if connection.execute(HAS_MEMORIES).fetchone() is None:
        return {}
    rows = connection.execute(_STATES, (f"{name}*", MAX_STATE)).fetchall()
    return {key: json.loads(state) for key, state in rows}
