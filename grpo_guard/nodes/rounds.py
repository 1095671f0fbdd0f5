"""Write batches to the ledger: one transaction each, idempotent and bounded.

Each batch is recorded in full or not at all, so the process can safely be killed at any time. A
recorded completion is not counted again while its round is among the last `REMEMBERED_ROUNDS`:
retries and several ranks of one trainer may pass on the same completions.

A round is closed when the second round after it begins, so ranks can be up to one round apart. Its
answers are then totalled per node and discarded. Work that arrives later counts toward the newest
round: if it were dropped, a node that is late, or claims to be, would escape judgement.
"""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from grpo_guard.core.verdict import Outcome
from grpo_guard.nodes.bets import Tally
from grpo_guard.nodes.evidence import STRIDE, WINDOW
from grpo_guard.nodes.intake import Entry, Intake, largest
from grpo_guard.nodes.schema import LedgerError, chunks, transaction

REMEMBERED_ROUNDS = 8
OPEN_ROUNDS = 2
# Names cost strangers nothing. Beyond this many, new names are counted together.
MAX_NODES = 10_000
MAX_REASONS = 24
MAX_PHRASES = 200
# Maximum number of rejections of one node's answers to one prompt that are held against the node.
# If a verifier misreads one of these answers, it misreads them all, even if the other nodes'
# answers differ.
MAX_HELD = 3
# Maximum number of answers to one prompt that count in full; if there are more, each counts as a
# fraction. Otherwise three rejections among hundreds of answers would be below the tolerance, and a
# node could poison a whole group.
MAX_JUDGED = 12
# If rounds are not numbered, a round is full once the nodes that sent the most are at least
# FULL_NODES and average at least FULL_EACH completions each. Otherwise, if a trainer passes on
# single completions, each would become a round with nothing to compare. A round with FULL_MOST
# completions is full in any case; otherwise two nodes alone could keep filling it for ever.
FULL_NODES, FULL_EACH, FULL_MOST = 3, 16, 10_000
_MOST = 2**62

Tallies = dict[int, Tally]


def write(connection: sqlite3.Connection, batch: Intake, most: int = MAX_NODES) -> None:
    """Record one batch, or raise sqlite3.Error and record nothing; at most ``most`` names are
    kept."""
    with transaction(connection):
        new = _unseen(connection, batch.entries)
        if not new:
            return
        clock = _clock(connection, batch.round)
        last, closed, _ = read_clock(connection)
        clock = last if clock <= closed else clock
        connection.executemany(
            "INSERT INTO seen VALUES (?, ?)",
            sorted((entry.key, clock) for entry in new if entry.outcome is not Outcome.ABSTAIN),
        )
        ids = _nodes(connection, (e.node for e in new if e.node is not None), clock, most)
        known = [(ids[e.node], e) for e in new if e.node in ids]
        _add(connection, "nameless", sum(e.node is None for e in new))
        _add(connection, "uncounted", sum(e.node is not None and e.node not in ids for e in new))
        _totals(connection, known, clock)
        _cells(connection, known, clock)
        _reasons(connection, known)
        _phrases(connection, known, clock)


def write_slots(
    connection: sqlite3.Connection,
    round: int | None,
    slots: Mapping[bytes, tuple[int, int]],
    most: int = MAX_NODES,
) -> None:
    """Record each node's (owed, empty) slots of one round, or raise sqlite3.Error and record
    nothing; a repeated call replaces the counts."""
    with transaction(connection):
        clock = _clock(connection, round)
        if clock <= read_meta(connection, "closed"):
            return
        ids = _nodes(connection, slots, clock, most)
        for name, (owed, empty) in slots.items():
            if (node := ids.get(name)) is None:
                continue
            query = "SELECT owed, empty FROM slots WHERE clock = ? AND node = ?"
            was = connection.execute(query, (clock, node)).fetchone() or (0, 0)
            connection.execute(
                "INSERT OR REPLACE INTO slots VALUES (?, ?, ?, ?)", (clock, node, owed, empty)
            )
            connection.execute(
                "UPDATE nodes SET owed = owed + ?, empty = empty + ? WHERE id = ?",
                (owed - was[0], empty - was[1], node),
            )


def read_meta(connection: sqlite3.Connection, key: str) -> int:
    """Read a counter of the ledger; ``closed`` and ``judged`` are rounds, and -1 before the first.
    Raises LedgerError if the stored value is not a count."""
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return _count(key, None if row is None else row[0])


def _count(key: str, value: object) -> int:
    if value is None:
        return -1 if key in ("closed", "judged") else 0
    if not isinstance(value, int) or not -1 <= value < _MOST:
        raise LedgerError(f"{key}: expected a count in the ledger, got {value!r:.80}")
    return value


def read_clock(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """Return the last round that has begun, the last closed and the last judged; -1 before the
    first. Raises LedgerError if the three numbers are inconsistent. One wrong digit could stop all
    judging, or cause billions of rounds to be judged."""
    # One statement reads one snapshot: another process may be writing.
    last, closed, judged = connection.execute(
        "SELECT (SELECT coalesce(max(clock), -1) FROM clock),"
        " (SELECT value FROM meta WHERE key = 'closed'),"
        " (SELECT value FROM meta WHERE key = 'judged')"
    ).fetchone()
    closed, judged = _count("closed", closed), _count("judged", judged)
    if closed != max(last - OPEN_ROUNDS, -1) or not -1 <= judged <= closed:
        raise LedgerError(f"expected rounds that fit, got {last} begun, {closed} closed, {judged}")
    return int(last), closed, judged


def write_meta(connection: sqlite3.Connection, key: str, value: int) -> None:
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))


def count_lost(connection: sqlite3.Connection, batches: int) -> None:
    """Record that this many batches were lost because they could not be written."""
    with transaction(connection):
        _add(connection, "lost", batches)


def closed_rounds(
    connection: sqlite3.Connection, after: int, until: int
) -> tuple[dict[int, Tallies], dict[int, Tallies]]:
    """Return the tallies of closed rounds by round and node id: of completions, and of slots.

    A node's slots in one round are a single observation between 0 and 1: whatever keeps the node
    from filling one slot keeps it from filling all of them.
    """
    work, slots = defaultdict[int, Tallies](dict), defaultdict[int, Tallies](dict)
    span = (after, until)
    query = "SELECT clock, node, judged, rejected, held FROM rounds WHERE clock > ? AND clock <= ?"
    for clock, node, judged, rejected, held in connection.execute(query, span):
        work[clock][node] = Tally(judged, rejected, held)
    query = "SELECT clock, node, owed, empty FROM slots WHERE clock > ? AND clock <= ? AND owed > 0"
    for clock, node, owed, empty in connection.execute(query, span):
        slots[clock][node] = Tally(1.0, empty / owed, empty / owed)
    return work, slots


def _unseen(connection: sqlite3.Connection, entries: Iterable[Entry]) -> list[Entry]:
    found = {e.key: e for e in entries if e.outcome is not None}
    for keys in chunks(list(found)):
        query = f"SELECT key FROM seen WHERE key IN ({', '.join('?' * len(keys))})"
        for (key,) in connection.execute(query, keys).fetchall():
            del found[key]
    return list(found.values())


def _clock(connection: sqlite3.Connection, round: int | None) -> int:
    """Return the ledger's own number of a round, which only increases, whatever nodes claim and
    even after a restart."""
    if round is not None:
        query = "SELECT clock FROM clock WHERE round = ? ORDER BY clock DESC"
        if row := connection.execute(query, (round,)).fetchone():
            return int(row[0])
    read_clock(connection)
    last, name = connection.execute("SELECT max(clock), round FROM clock").fetchone()
    if round is None and name is None and last is not None and not _full(connection, int(last)):
        return int(last)
    clock = 0 if last is None else int(last) + 1
    connection.execute("INSERT INTO clock VALUES (?, ?)", (clock, round))
    _close(connection, clock - OPEN_ROUNDS)
    connection.execute("DELETE FROM clock WHERE clock <= ?", (clock - REMEMBERED_ROUNDS,))
    connection.execute("DELETE FROM seen WHERE clock <= ?", (clock - REMEMBERED_ROUNDS,))
    return clock


def _full(connection: sqlite3.Connection, clock: int) -> bool:
    query = "SELECT node, sum(judged) FROM cells WHERE clock = ? GROUP BY node"
    judged: dict[int, int] = dict(connection.execute(query, (clock,)).fetchall())
    # Not the average over all nodes: with a new name for each completion, no round would ever be
    # full.
    most = [judged[node] for node in largest(judged)]
    full = len(most) >= FULL_NODES and sum(most) >= FULL_EACH * len(most)
    return full or sum(judged.values()) >= FULL_MOST


def _close(connection: sqlite3.Connection, until: int) -> None:
    closed = read_meta(connection, "closed")
    for clock in range(closed + 1, until + 1):
        query = "SELECT node, judged, rejected FROM cells WHERE clock = ?"
        sums = defaultdict[int, list[float]](lambda: [0, 0, 0])
        for node, judged, rejected in connection.execute(query, (clock,)):
            if not 1 <= judged < _MOST or not 0 <= rejected <= judged:
                raise LedgerError(f"expected counts, got {rejected!r:.80} of {judged!r:.80}")
            # The mean over drawing MAX_JUDGED answers at random: just as fair (Jensen).
            part = min(1.0, MAX_JUDGED / judged)
            held = min(rejected * part, MAX_HELD)
            for k, value in enumerate((judged * part, rejected * part, held)):
                sums[node][k] += value
        connection.executemany(
            "INSERT OR REPLACE INTO rounds VALUES (?, ?, ?, ?, ?)",
            [(clock, node, *values) for node, values in sums.items()],
        )
        connection.execute("DELETE FROM cells WHERE clock = ?", (clock,))
    if until > closed:
        write_meta(connection, "closed", until)
        old = until - WINDOW - 2 * STRIDE
        connection.execute("DELETE FROM rounds WHERE clock < ?", (old,))
        connection.execute("DELETE FROM slots WHERE clock < ?", (old,))


def _nodes(
    connection: sqlite3.Connection, names: Iterable[bytes], clock: int, most: int
) -> dict[bytes | None, int]:
    """Return the nodes' ids by name, adding new names; those beyond ``most`` are left out."""
    found: dict[bytes | None, int] = {}
    asked = list(dict.fromkeys(names))
    for some in chunks(asked):
        query = f"SELECT name, id FROM nodes WHERE name IN ({', '.join('?' * len(some))})"
        found |= dict(connection.execute(query, some).fetchall())
    # Ids have no gaps, because names are never removed; counting would read every row.
    (count,) = connection.execute("SELECT coalesce(max(id), 0) FROM nodes").fetchone()
    new = [name for name in asked if name not in found][: max(0, most - count)]
    for name in new:
        query = "INSERT INTO nodes (name, first, last) VALUES (?, ?, ?) RETURNING id"
        found[name] = int(connection.execute(query, (name, clock, clock)).fetchone()[0])
    return found


def _totals(connection: sqlite3.Connection, known: list[tuple[int, Entry]], clock: int) -> None:
    counts = Counter((node, entry.outcome) for node, entry in known)
    rows = []
    for node in {node for node, _ in known}:
        accepted, rejected, abstained = (counts[node, outcome] for outcome in Outcome)
        rows.append((clock, accepted + rejected, rejected, abstained, node))
    connection.executemany(
        "UPDATE nodes SET last = max(last, ?), judged = judged + ?, rejected = rejected + ?, "
        "abstained = abstained + ? WHERE id = ?",
        rows,
    )


def _cells(connection: sqlite3.Connection, known: list[tuple[int, Entry]], clock: int) -> None:
    counts = Counter((node, entry.prompt, entry.outcome) for node, entry in known)
    connection.executemany(
        "INSERT INTO cells VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
        "judged = judged + excluded.judged, rejected = rejected + excluded.rejected",
        [
            (clock, node, prompt, count, count if outcome is Outcome.REJECT else 0)
            for (node, prompt, outcome), count in counts.items()
            if outcome is not Outcome.ABSTAIN
        ],
    )


def _reasons(connection: sqlite3.Connection, known: list[tuple[int, Entry]]) -> None:
    counts = Counter((node, kind) for node, entry in known for kind in entry.kinds)
    for (node, kind), count in counts.items():
        query = "SELECT count(*), sum(kind = ?) FROM reasons WHERE node = ?"
        kinds, there = connection.execute(query, (kind, node)).fetchone()
        if there or kinds < MAX_REASONS:
            connection.execute(
                "INSERT INTO reasons VALUES (?, ?, ?) "
                "ON CONFLICT DO UPDATE SET count = count + excluded.count",
                (node, kind, count),
            )


def _phrases(connection: sqlite3.Connection, known: list[tuple[int, Entry]], clock: int) -> None:
    rows = [(n, p.digest, p.excerpt, clock) for n, e in known for p in e.phrases]
    connection.executemany(
        "INSERT INTO phrases VALUES (?, ?, ?, 1, ?) "
        "ON CONFLICT DO UPDATE SET count = count + 1, last = excluded.last",
        rows,
    )
    # Drop the rarest first: a node that fills the list with junk keeps the phrases it repeats.
    connection.executemany(
        "DELETE FROM phrases WHERE node = ?1 AND digest IN (SELECT digest FROM phrases "
        "WHERE node = ?1 ORDER BY count DESC, last DESC LIMIT -1 OFFSET ?2)",
        [(node, MAX_PHRASES) for node in {row[0] for row in rows}],
    )


def _add(connection: sqlite3.Connection, key: str, count: int) -> None:
    if count:
        write_meta(connection, key, read_meta(connection, key) + count)
