"""Release a node that was wrongly found hard: clear its marks and stop counting its past.

Decay alone would take one to three half-lives, and a node whose evidence is still there would be
accused again at its next rejection. The node's totals still record what it did.
"""

import sqlite3
from collections.abc import Iterable, MutableMapping
from dataclasses import replace
from pathlib import Path

from grpo_guard.nodes.bets import Tally
from grpo_guard.nodes.intake import meant, stored_names
from grpo_guard.nodes.rounds import read_meta, write_meta
from grpo_guard.nodes.schema import names_in, opened, unknown_node

PARDONS = "pardons"
"""The ledger's key for the number of releases."""
_UNTIL = "pardoned until, node "


def release(path: Path, node: str) -> bytes:
    """Clear one node in a ledger that may be in use, and return its name as stored; running guards
    follow at their next batch.

    If the node keeps being rejected as often, it is found hard again. If its model is honest but
    weaker, raise ``offset``. Raises LedgerError if the file is not a ledger, cannot be written, or
    does not know the node.
    """
    with opened(path, "a ledger that can be written", write=True) as connection:
        name = stored_name(connection, path, node)
        row = connection.execute("SELECT id FROM nodes WHERE name = ?", (name,)).fetchone()
        (last,) = connection.execute("SELECT coalesce(max(clock), -1) FROM clock").fetchone()
        connection.execute("DELETE FROM marks WHERE node = ?", row)
        write_meta(connection, f"{_UNTIL}{row[0]}", last)
        write_meta(connection, PARDONS, read_meta(connection, PARDONS) + 1)
    return name


def pardons(connection: sqlite3.Connection) -> int:
    """Return the number of releases so far; when it changes, everything is judged afresh."""
    return read_meta(connection, PARDONS)


def pardoned(
    connection: sqlite3.Connection, rounds: Iterable[MutableMapping[int, dict[int, Tally]]]
) -> None:
    """Remove what is held against released nodes in rounds up to their release; as peers of other
    nodes they still count in full. Changes ``rounds``, tallies by round and node id, in place."""
    until = released_until(connection)
    for by_round in rounds if until else ():
        for clock, tallies in by_round.items():
            for node in tallies.keys() & until.keys():
                if clock <= until[node]:
                    tallies[node] = replace(tallies[node], held=0)


def released_until(connection: sqlite3.Connection) -> dict[int, int]:
    """Return the ids of released nodes, with the last round that no longer counts against each."""
    query = "SELECT key, value FROM meta WHERE key LIKE ?"
    rows = connection.execute(query, (f"{_UNTIL}%",))
    return {int(key.removeprefix(_UNTIL)): clock for key, clock in rows}


def stored_name(connection: sqlite3.Connection, path: Path, shown: str) -> bytes:
    """Return the name, as stored, of the node that an operator names as it is logged or shown;
    raises LedgerError if the ledger does not know the node."""
    query = "SELECT name FROM nodes WHERE name = ?"
    # With a backslash, it may have been copied from where names are escaped.
    for name in () if "\\" in shown else stored_names(shown):
        if connection.execute(query, (name,)).fetchone() is not None:
            return name
    if (found := meant(shown, lambda: names_in(connection))) is not None:
        return found
    raise unknown_node(path, shown, names_in(connection))
