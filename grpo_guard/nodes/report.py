"""Read a ledger from disk: the standing of nodes, the reasons, and the phrases that nodes share."""

import math
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_guard.core.quoting import counted
from grpo_guard.nodes.intake import printable
from grpo_guard.nodes.judging import SLOTS, WORK
from grpo_guard.nodes.release import released_until, stored_name
from grpo_guard.nodes.rounds import read_meta
from grpo_guard.nodes.schema import LedgerError, opened
from grpo_guard.nodes.standing import Mark, State

SHOWN_REASONS = 5
MAX_HINTS = 100


@dataclass(frozen=True, slots=True)
class Standing:
    """The standing of one node. Counts cover the node's whole life.

    Args:
        node: The node's name as `ledger show` prints it: escaped where it cannot be seen or looks
            like another's.
        state: State of the node's work; only "hard" has consequences.
        withholds: State of the node's empty slots, at most "soft".
        judged, rejected: Number of completions accepted or rejected, and number rejected.
        abstained: Number of completions on which no verdict was reached.
        others_judged, others_rejected: The same two numbers for all other nodes together.
        log_e: Natural logarithm of the e-value of the node's rejections, after the last closed
            round.
        level: Ratio of the evidence to the threshold when the evidence last rose, decayed since; 1
            makes a node hard.
        peers: Number of peers that the node was compared with; fewer than two give no evidence.
        since, last_round: Rounds, by the ledger's own count, in which the node entered its state
            and last sent work.
        owed, empty: Number of slots that the node had to fill, and number it left empty.
        reasons: Kinds of findings the node was rejected for, with counts, most frequent first.
        released: Whether an operator released the node and none of its work has been judged since.
    """

    node: str
    state: State
    withholds: State
    judged: int
    rejected: int
    abstained: int
    others_judged: int
    others_rejected: int
    log_e: float
    level: float
    peers: int
    since: int
    last_round: int
    owed: int
    empty: int
    reasons: tuple[tuple[str, int], ...]
    released: bool = False

    @property
    def rate(self) -> float | None:
        """Share of the node's judged completions that were rejected; None before the first."""
        return self.rejected / self.judged if self.judged else None

    @property
    def others_rate(self) -> float | None:
        """Share of other nodes' judged completions that were rejected; None if there are none."""
        return self.others_rejected / self.others_judged if self.others_judged else None

    def to_dict(self) -> dict[str, Any]:
        """Return the standing as plain JSON values."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        fields |= {"state": self.state.value, "withholds": self.withholds.value}
        reasons = [{"kind": kind, "count": count} for kind, count in self.reasons]
        return {**fields, "rate": self.rate, "others_rate": self.others_rate, "reasons": reasons}


@dataclass(frozen=True, slots=True)
class SybilHint:
    """Nodes whose rejected work shares a recurring phrase. Only a hint: honest nodes quote too.

    ``excerpt`` is the beginning of the phrase in the work of one of the nodes; ``count`` is the
    number of completions with the phrase from the node that repeats it most.
    """

    nodes: tuple[str, ...]
    excerpt: str
    count: int

    def to_dict(self) -> dict[str, Any]:
        """Return the hint as plain JSON values."""
        return {"nodes": list(self.nodes), "excerpt": self.excerpt, "count": self.count}


@dataclass(frozen=True, slots=True)
class Shown:
    """Contents of a ledger for a reader: nodes, worst first; phrases shared by several nodes; and
    notes."""

    rounds: int
    nodes: list[Standing]
    hints: list[SybilHint]
    notes: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Return the contents as plain JSON values."""
        return {
            "rounds": self.rounds,
            "nodes": [node.to_dict() for node in self.nodes],
            "shared_phrases": [hint.to_dict() for hint in self.hints],
            "notes": self.notes,
        }


def read(path: Path, node: str | None = None) -> Shown:
    """Read everything in a ledger, or one node, from one snapshot and without writing to it. Raises
    LedgerError if the file is not a ledger, cannot be read, or does not know the node."""
    with opened(path, "a readable ledger") as connection:
        return _read(connection, path, node)


def _read(connection: sqlite3.Connection, path: Path, node: str | None) -> Shown:
    # Levels are stored as of their renewal; their decay uses the half-life of the writing process.
    half_life = read_meta(connection, "half_life_thousandths") / 1000 or 50.0
    name = None if node is None else stored_name(connection, path, node)
    nodes = standings(connection, half_life, name)
    hints = [
        hint
        for hint in sybil_hints(connection)
        if node is None or (nodes and nodes[0].node in hint.nodes)
    ]
    says = {
        "nameless": ("completion", "completions", "without a node"),
        "uncounted": ("completion", "completions", "of nodes beyond the limit of names"),
        "lost": ("batch", "batches", "lost while the ledger could not be written"),
    }
    notes = [
        f"{counted(count, one, several)} {what}"
        for key, (one, several, what) in says.items()
        if (count := read_meta(connection, key))
    ]
    (last,) = connection.execute("SELECT coalesce(max(clock), -1) FROM clock").fetchone()
    if last >= 0:
        judged = read_meta(connection, "judged") + 1
        rounds = counted(last + 1, "round")
        notes.append(f"{rounds}, {judged:,} judged; a round is judged two rounds later")
    return Shown(last + 1, nodes, hints, notes)


def standings(
    connection: sqlite3.Connection, half_life: float, name: bytes | None = None
) -> list[Standing]:
    """Return the standings of all nodes, or of one, worst first. May raise sqlite3.Error."""
    now = read_meta(connection, "judged")
    judged, rejected = connection.execute(
        "SELECT coalesce(sum(judged), 0), coalesce(sum(rejected), 0) FROM nodes"
    ).fetchone()
    query = (
        "SELECT id, name, last, judged, rejected, abstained, owed, empty FROM nodes "
        "WHERE ?1 IS NULL OR name = ?1"
    )
    rows = connection.execute(query, (name,)).fetchall()
    released = released_until(connection)
    found = []
    for node, stored, last, own, own_rejected, abstained, owed, empty in rows:
        _expect_counts(last, own, own_rejected, abstained, owed, empty, judged, rejected)
        mark, log_e, peers = _mark(connection, node, WORK) or (Mark(), 0.0, 0)
        slots = _mark(connection, node, SLOTS)
        found.append(
            Standing(
                node=printable(stored),
                state=mark.state,
                withholds=slots[0].state if slots else State.CLEAR,
                judged=own,
                rejected=own_rejected,
                abstained=abstained,
                others_judged=judged - own,
                others_rejected=rejected - own_rejected,
                log_e=log_e,
                level=mark.level_at(now, half_life),
                peers=peers,
                since=mark.since,
                last_round=last,
                owed=owed,
                empty=empty,
                reasons=_reasons(connection, node),
                released=node in released and _mark(connection, node, WORK) is None,
            )
        )
    order = {State.HARD: 0, State.SOFT: 1, State.CLEAR: 2}
    return sorted(found, key=lambda s: (order[s.state], -s.log_e, -(s.rate or 0.0), s.node))


def state_of(connection: sqlite3.Connection, name: bytes) -> State:
    """Return the state of one node's work; clear if the node is unknown. May raise
    sqlite3.Error."""
    query = (
        "SELECT state FROM marks JOIN nodes ON nodes.id = marks.node WHERE name = ? AND kind = ?"
    )
    row = connection.execute(query, (name, WORK)).fetchone()
    return State(row[0]) if row else State.CLEAR


def sybil_hints(connection: sqlite3.Connection) -> list[SybilHint]:
    """Return the phrases shared by two or more nodes, most widely shared first. May raise
    sqlite3.Error."""
    query = (
        "SELECT digest, min(excerpt), max(count) FROM phrases GROUP BY digest "
        "HAVING count(*) > 1 ORDER BY count(*) DESC, max(count) DESC LIMIT ?"
    )
    hints: dict[tuple[tuple[str, ...], str], SybilHint] = {}
    for digest, excerpt, count in connection.execute(query, (MAX_HINTS,)).fetchall():
        names = connection.execute(
            "SELECT name FROM nodes JOIN phrases ON nodes.id = phrases.node "
            "WHERE digest = ? ORDER BY name",
            (digest,),
        )
        _expect_counts(count)
        hint = SybilHint(tuple(printable(n) for (n,) in names), printable(excerpt), count)
        hints.setdefault((hint.nodes, hint.excerpt), hint)  # the pieces of one phrase
    return list(hints.values())


def _mark(connection: sqlite3.Connection, node: int, kind: str) -> tuple[Mark, float, int] | None:
    """Return a node's mark, evidence and number of peers; None if it was not judged."""
    query = (
        "SELECT state, level, renewed, since, log_e, peers FROM marks WHERE node = ? AND kind = ?"
    )
    row = connection.execute(query, (node, kind)).fetchone()
    if row is None:
        return None
    state, level, renewed, since, log_e, peers = row
    _expect_counts(peers)
    if not isinstance(log_e, int | float) or not math.isfinite(log_e):
        raise LedgerError(f"expected evidence, got {log_e!r:.80}")
    return Mark(State(state), level, renewed, since), log_e, peers


def _reasons(connection: sqlite3.Connection, node: int) -> tuple[tuple[str, int], ...]:
    query = "SELECT kind, count FROM reasons WHERE node = ? ORDER BY count DESC, kind LIMIT ?"
    rows = connection.execute(query, (node, SHOWN_REASONS)).fetchall()
    _expect_counts(*(count for _, count in rows))
    return tuple((printable(kind.encode()), count) for kind, count in rows)


def _expect_counts(*values: object) -> None:
    for value in values:
        if not isinstance(value, int) or value < 0:
            raise LedgerError(f"expected a count, got {value!r:.80}")
