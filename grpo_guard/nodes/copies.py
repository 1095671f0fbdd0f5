"""Convert a ledger to plain JSON values and back, for a trainer's checkpoint.

A checkpoint comes from a disk that others may write to. The types of all rows are checked before
anything is replaced, so that a broken row causes a clear error up front. No SQL is read from a
checkpoint.
"""

import math
import sqlite3
from typing import Any, Final

from grpo_guard.nodes.release import PARDONS, pardons
from grpo_guard.nodes.rounds import closed_rounds, read_clock, write_meta
from grpo_guard.nodes.saved import reading, require_format
from grpo_guard.nodes.schema import TABLES, LedgerError, transaction
from grpo_guard.nodes.standing import Mark, State

FORMAT: Final = 1
_MOST_PARDONS: Final = 2**40
_KINDS: Final = {"INTEGER": int, "REAL": (int, float), "TEXT": str, "BLOB": bytes}


def dump(connection: sqlite3.Connection) -> dict[str, Any]:
    """Return all rows of a ledger by table, with bytes as hexadecimal text. May raise
    sqlite3.Error."""
    with transaction(connection, "BEGIN"):  # one snapshot
        tables = {
            table: [
                [value.hex() if isinstance(value, bytes) else value for value in row]
                for row in connection.execute(f"SELECT * FROM {table}")
            ]
            for table in TABLES
        }
    return {"format": FORMAT, "tables": tables}


def in_memory(connection: sqlite3.Connection) -> sqlite3.Connection:
    """Copy the whole file into memory, for changes while the file itself cannot be written; the
    caller closes the copy. May raise sqlite3.Error."""
    copied = sqlite3.connect(":memory:", isolation_level=None)
    connection.backup(copied)
    return copied


def load(connection: sqlite3.Connection, state: dict[str, Any]) -> None:
    """Replace all rows of a ledger with the rows in ``state``, or none of them. Raises StateError
    if ``state`` does not have the form that `dump` returns, or sqlite3.Error."""
    with transaction(connection):
        columns = {table: _columns(connection, table) for table in TABLES}
        with reading("ledger"):
            require_format(state, FORMAT)
            rows = {
                table: [
                    [_value(value, *column) for value, column in zip(row, of_table, strict=True)]
                    for row in state["tables"][table]
                ]
                for table, of_table in columns.items()
            }
        # Other processes judge from rounds they have already read; a changed number of releases
        # makes them start over.
        before = pardons(connection)
        for table in TABLES:
            connection.execute(f"DELETE FROM {table}")
            marks = ", ".join("?" * len(columns[table]))
            with reading("ledger"):
                connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows[table])
        _require_sound(connection)
        write_meta(connection, PARDONS, max(before, pardons(connection)) + 1)


def _require_sound(connection: sqlite3.Connection) -> None:
    """Raise StateError if rows that the ledger reads with each batch are unsound, because such rows
    would degrade it permanently."""
    with reading("ledger"):
        try:
            read_clock(connection)
            closed_rounds(connection, -1, 2**62)  # refuses inconsistent counts
            if pardons(connection) > _MOST_PARDONS:
                raise ValueError("more releases than there can be")
        except LedgerError as error:
            raise ValueError(str(error)) from None
        for row in connection.execute("SELECT state, level, renewed, since FROM marks"):
            Mark(State(row[0]), *row[1:])


def _columns(connection: sqlite3.Connection, table: str) -> list[tuple[str, bool]]:
    """Return the type of each column, and whether it may be NULL."""
    found = connection.execute(f"PRAGMA table_info({table})").fetchall()
    return [(kind, not required and not key) for _, _, kind, required, _, key in found]


def _value(value: Any, kind: str, optional: bool) -> Any:
    if value is None and optional:
        return None
    if kind == "BLOB":
        return bytes.fromhex(value)
    if isinstance(value, bool) or not isinstance(value, _KINDS[kind]):  # type: ignore[arg-type]
        raise TypeError(f"a {type(value).__name__} for {kind}")
    if isinstance(value, int | float) and not (math.isfinite(value) and abs(value) < 2**62):
        raise ValueError(f"number {value!r:.40}")
    return value
