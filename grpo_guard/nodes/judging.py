"""Turn closed rounds into marks: run the comparisons and write the result for each node."""

import secrets
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from grpo_guard.nodes.bets import Tolerance
from grpo_guard.nodes.evidence import STRIDE, Comparison, Evidence, threshold
from grpo_guard.nodes.release import pardoned, pardons, released_until
from grpo_guard.nodes.rounds import closed_rounds, read_clock, read_meta, write_meta
from grpo_guard.nodes.schema import chunks, transaction
from grpo_guard.nodes.standing import Mark, State, updated

OnChanges = Callable[[sqlite3.Connection, list[int], list[int]], None]
"""Called with the ids of the nodes that became hard, and of those that are no longer hard."""
WORK = "work"
SLOTS = "slots"
# A node that loses its connection leaves slots empty in good faith, so the tolerance is wider than
# for rejections.
SLOT_TOLERANCE = Tolerance(ratio=1.25, offset=0.05)
_NOTHING = Evidence(0.0, 0, 0, rose=False)


@dataclass(frozen=True, slots=True)
class Settings:
    """How the ledger judges; see `EvidenceLedger` for the arguments."""

    alpha: float
    tolerance: Tolerance
    hostile: float
    half_life: float


class Judging:
    """This process's comparisons, fed from the database. Not safe to share between threads."""

    def __init__(self, settings: Settings, on_changes: OnChanges = lambda *_: None) -> None:
        self._settings, self._on_changes = settings, on_changes
        self._fed: int | None = None
        self._pardons = 0
        self._released: dict[int, int] = {}
        self._start(b"")

    def _start(self, salt: bytes) -> None:
        self._work = Comparison(self._settings.tolerance, self._settings.hostile, salt=salt)
        self._slots = Comparison(SLOT_TOLERANCE, self._settings.hostile, salt=salt)

    def catch_up(self, connection: sqlite3.Connection) -> None:
        """Judge every closed round that no process has judged yet; after an error, the rest is
        judged next time. Raises sqlite3.Error if the file cannot be used now, or LedgerError,
        ValueError or TypeError if it holds odd values."""
        _, closed, judged = read_clock(connection)
        given = pardons(connection)
        if given != self._pardons:
            released = released_until(connection)
            if self._fed is not None:  # otherwise the release predates this process
                changed = dict(released.items() - self._released.items())
                self._on_changes(connection, [], list(changed))
            self._released = released
            self._fed, self._pardons = None, given  # rounds fed so far ignore the releases
        if closed <= judged and self._fed is not None:
            return
        # If judging has been failing for long, nothing is left of earlier rounds.
        judged = max(judged, closed - self._work.window)
        if self._fed is None or judged - self._fed > self._work.window:
            self._start(_salt(connection))
            # All rounds that count, beginning with a round at which evidence may start.
            first = max(0, judged + 1 - self._work.window) // STRIDE * STRIDE
            self._work.begin_at(first)
            self._slots.begin_at(first)
            self._fed = first - 1
        for clock in range(self._fed + 1, closed + 1):
            # One at a time, because all of them together can take gigabytes.
            work, slots = closed_rounds(connection, clock - 1, clock)
            pardoned(connection, (work, slots))
            self._work.add({str(n): t for n, t in work.get(clock, {}).items()})
            self._slots.add({str(n): t for n, t in slots.get(clock, {}).items()})
            self._fed = clock
            if clock > judged:
                self._write(connection, clock, self._work.evidence(), self._slots.evidence())

    def _write(
        self,
        connection: sqlite3.Connection,
        clock: int,
        work: Mapping[str, Evidence],
        slots: Mapping[str, Evidence],
    ) -> None:
        with transaction(connection):
            if read_meta(connection, "judged") >= clock:
                return  # another process was faster, with the same result
            hard, clear = self._mark(connection, clock, WORK, work, State.HARD)
            self._mark(connection, clock, SLOTS, slots, State.SOFT)
            write_meta(connection, "judged", clock)
        self._on_changes(connection, hard, clear)

    def _mark(
        self,
        connection: sqlite3.Connection,
        clock: int,
        kind: str,
        evidence: Mapping[str, Evidence],
        most: State,
    ) -> tuple[list[int], list[int]]:
        """Write the marks; return the nodes that became hard and those that are no longer hard."""
        # Nodes that worked in this round, and nodes that decay may release. A clear name without
        # work is skipped, because strangers can invent any number of names.
        columns = "SELECT node, state, level, renewed, since FROM marks WHERE kind = ?"
        rows = connection.execute(f"{columns} AND state <> 'clear'", (kind,)).fetchall()
        for nodes in chunks([int(node) for node in evidence]):
            these = f"{columns} AND node IN ({', '.join('?' * len(nodes))})"
            rows += connection.execute(these, (kind, *nodes)).fetchall()
        marks = {str(row[0]): Mark(State(row[1]), *row[2:]) for row in rows}
        written, changed = [], []
        hard: list[int] = []
        clear: list[int] = []
        for node in marks.keys() | evidence.keys():
            found = evidence.get(node, _NOTHING)
            before = marks.get(node, Mark(since=clock))
            mark = updated(
                before,
                found.log_e / threshold(found.others, self._settings.alpha),
                rose=found.rose,
                now=clock,
                half_life=self._settings.half_life,
                most=most,
            )
            if (before.state is State.HARD) != (mark.state is State.HARD):
                (hard if mark.state is State.HARD else clear).append(int(node))
            if node in evidence:
                written.append(
                    (int(node), kind, found.log_e, found.peers,
                     mark.state.value, mark.level, mark.renewed, mark.since)
                )  # fmt: skip
            elif mark != before:
                changed.append((mark.state.value, mark.since, int(node), kind))
        connection.executemany(
            "INSERT OR REPLACE INTO marks VALUES (?, ?, ?, ?, ?, ?, ?, ?)", sorted(written)
        )
        connection.executemany(
            "UPDATE marks SET state = ?, since = ? WHERE node = ? AND kind = ?", changed
        )
        return hard, clear


def _salt(connection: sqlite3.Connection) -> bytes:
    """Return the ledger's secret, created on first use. All processes share it; otherwise they
    would draw different peers."""
    if not read_meta(connection, "salt"):
        with transaction(connection):
            if not read_meta(connection, "salt"):
                write_meta(connection, "salt", 1 + secrets.randbits(62))
    return read_meta(connection, "salt").to_bytes(8, "big")
