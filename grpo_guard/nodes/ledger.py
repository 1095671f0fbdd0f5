"""`EvidenceLedger`: where a guard records each batch and looks up the standing of nodes."""

import logging
import os
import sqlite3
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from grpo_guard.core.arguments import require_level, worded_class
from grpo_guard.core.completion import Completion
from grpo_guard.core.forks import Lock, close_before_forks, renew_in_children
from grpo_guard.core.shared_database import inherited, locked
from grpo_guard.core.verdict import Verdict
from grpo_guard.nodes import changes, copies, report
from grpo_guard.nodes.bets import Tolerance
from grpo_guard.nodes.intake import intake, name_bytes
from grpo_guard.nodes.judging import Judging, Settings
from grpo_guard.nodes.patience import Patience, patience_with
from grpo_guard.nodes.report import Standing, SybilHint
from grpo_guard.nodes.rounds import MAX_NODES, count_lost, write, write_meta, write_slots
from grpo_guard.nodes.saved import StateError
from grpo_guard.nodes.schema import LedgerError, connect
from grpo_guard.nodes.standing import State

logger = logging.getLogger("grpo_guard")

T = TypeVar("T")
Job: TypeAlias = Callable[[sqlite3.Connection], None]
# Maximum number of batches kept in memory while the database cannot be written; beyond that, the
# oldest are dropped.
MAX_WAITING = 256
_MOST_NODES = 10_000_000
# Seconds that loading a state may wait for the file, because the caller waits for the result.
_UNTIL_LOADED = 30.0
# Errors that would recur on every later attempt.
_HOPELESS = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError, OverflowError)


@worded_class
class EvidenceLedger:
    """Evidence per node over rounds, in one SQLite file that several processes can share.

    Errors never reach training. Batches that cannot be written wait in memory until the file can be
    written again. The log reports this once; meanwhile `degraded` gives the reason.

    A node's name must be authenticated by whatever carries the completions: evidence against a name
    that anyone can use is evidence against nobody.

    If ``announces`` is set, a warning is logged for each node convicted by this process and for
    each node released.

    Args:
        path: Path of the database, created if missing; its folder must exist.
        alpha: Chance that any honest node of the swarm is ever classed as hard.
        ratio: Tolerated ratio of rejection rates: an honest node is rejected at most ``ratio``
            times as often as its peers, plus ``offset``.
        offset: Rate added to the tolerance of ``ratio``. 0.01 allows for ten verifiers with a
            false-rejection rate of 0.001 each.
        hostile: Maximum share of a node's peers that may be hostile, in [0, 0.5].
        half_life: Number of rounds after which evidence that is not renewed counts for half as
            much.
        max_nodes: Maximum number of names kept; any further names are counted together. If a
            name costs its sender nothing, raise this no higher than the number of nodes.

    Raises:
        ValueError: an argument is out of range.
        LedgerError: the path holds something other than a ledger, or cannot hold a database.

    Examples:
        >>> ledger = EvidenceLedger("run.sqlite")
        >>> guard = Guard(AllOf(ExclusionVerifier(ledger), verifier), ledger=ledger)
    """

    degraded: str | None
    lost: int
    _recorded_lost: int
    _waiting: deque[Job]
    _connection: sqlite3.Connection | None

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        alpha: float = 1e-3,
        ratio: float = 1.25,
        offset: float = 0.01,
        hostile: float = 1 / 3,
        half_life: float = 50.0,
        max_nodes: int = MAX_NODES,
    ) -> None:
        if isinstance(max_nodes, bool) or not 1 <= max_nodes <= _MOST_NODES:
            raise ValueError(f"max_nodes: expected 1 to {_MOST_NODES:,} names, got {max_nodes!r}")
        require_level("alpha", alpha)
        if not 0 < half_life < float("inf"):
            raise ValueError(f"half_life: expected a number of rounds > 0, got {half_life!r}")
        self.path = Path(path)
        self.settings = Settings(alpha, Tolerance(ratio, offset), hostile, half_life)
        self.max_nodes = max_nodes
        self.announces = False
        self._lock = Lock()
        self._begin()
        renew_in_children(self)
        close_before_forks(self)
        try:
            connection = self._open(seconds := self._patience.seconds())
            write_meta(connection, "half_life_thousandths", round(half_life * 1000))
        except LedgerError:
            raise
        except Exception as error:
            self._fail(error, seconds)

    def record(
        self, batch: Sequence[Completion], verdicts: Sequence[Verdict], *, round: int | None = None
    ) -> None:
        """Record one batch, as `Guard` does.

        Abstentions, and rejections based on the standing itself, are not evidence. Completions
        without a node count towards none of the nodes. Raises ValueError if there is not one
        verdict per completion.

        Args:
            batch: The completions.
            verdicts: One verdict per completion, in order.
            round: Round of the batch. If None, the median of the rounds claimed by the nodes that
                sent the most; if they claim none, batches are gathered until these nodes have 16
                completions each on average.
        """
        taken = intake(batch, verdicts, round)
        if taken.entries:
            self._enqueue(lambda connection: write(connection, taken, self.max_nodes))

    def record_slots(
        self, owed: Mapping[str, int], empty: Mapping[str, int], *, round: int | None = None
    ) -> None:
        """Record the slots left empty in a round, once the round is complete.

        A node that withholds completions it dislikes is also selecting its work. The evidence has a
        separate budget ``alpha`` and makes a node soft at most, because a lost connection looks the
        same. Raises ValueError if the counts are inconsistent.

        Args:
            owed: Number of slots per node, for every node that takes part.
            empty: Number of slots left empty per node, e.g.
                ``Counter(s.node for s in slots.missing())``.
            round: Round of the slots, as in `record`; None only if batches carry no round either.
        """
        slots = {}
        for node, count in owed.items():
            left = empty.get(node, 0)
            if not 0 <= left <= count:
                raise ValueError(f"empty[{node[:80]!r}]: expected 0 to {count}, got {left!r}")
            slots[name_bytes(node)] = (int(count), int(left))
        if unknown := [node for node in empty if node not in owed]:
            raise ValueError(f"empty: expected nodes of owed, got {unknown[0][:80]!r}")
        self._enqueue(lambda connection: write_slots(connection, round, slots, self.max_nodes))

    def state(self, node: str) -> State:
        """Return the standing of one node; clear if the node is unknown. Raises LedgerError if the
        ledger cannot be read."""
        return self._read(lambda connection: report.state_of(connection, name_bytes(node)))

    def standing(self, node: str) -> Standing | None:
        """Return everything known about one node, or None if the node is unknown. Raises
        LedgerError like `state`."""
        half_life = self.settings.half_life
        found = self._read(lambda c: report.standings(c, half_life, name_bytes(node)))
        return found[0] if found else None

    def standings(self) -> list[Standing]:
        """Return everything known about every node, worst first. Raises LedgerError like
        `state`."""
        return self._read(lambda c: report.standings(c, self.settings.half_life))

    def sybil_hints(self) -> list[SybilHint]:
        """Return the recurring phrases that two or more nodes share. Raises LedgerError like
        `state`."""
        return self._read(report.sybil_hints)

    def state_dict(self) -> dict[str, Any]:
        """Return everything in the ledger as plain JSON values, e.g. for a trainer's checkpoint.
        Raises LedgerError if the ledger cannot be read."""
        with self._lock:
            self._flush()
            return self._read(self._dumped)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace the ledger's contents, for all processes, with what `state_dict` returned. Raises
        ValueError if ``state`` does not have that form, in which case nothing is replaced, or
        LedgerError if the file cannot be written."""
        with self._lock:
            self._read(lambda connection: self._loaded(connection, state))
            self._waiting.clear()  # these batches belong to the state that was replaced
            self._patience.behind(self, 0)

    def close(self) -> None:
        """Write waiting batches, if possible, and close the file."""
        with self._lock:
            self._flush()
            if self._connection is not None:
                self._connection.close()
            self._forget()

    @property
    def current(self) -> bool:
        """Whether the standings are up to date: nothing is wrong, or the file is only locked, no
        unwritten batch was lost, and reading still works."""
        return self.degraded is None or (self._locked and self.lost == self._recorded_lost)

    @property
    def store_path(self) -> Path:
        """The file that the ledger writes to."""
        return self.path

    @property
    def _patience(self) -> Patience:
        return patience_with(self.path)

    def _dumped(self, connection: sqlite3.Connection) -> dict[str, Any]:
        """Dump the ledger with its waiting batches, which must not be missing from a checkpoint."""
        if not self._waiting:
            return copies.dump(connection)
        with closing(copies.in_memory(connection)) as copied:
            for job in self._waiting:
                with suppress(*_HOPELESS):
                    job(copied)
            Judging(self.settings).catch_up(copied)
            return copies.dump(copied)

    def _loaded(self, connection: sqlite3.Connection, state: dict[str, Any]) -> None:
        _wait(connection, _UNTIL_LOADED)
        copies.load(connection, state)

    def _enqueue(self, job: Job) -> None:
        with self._lock:
            self._waiting.append(job)
            self._flush()
            while len(self._waiting) > MAX_WAITING:
                self._waiting.popleft()
                self.lost += 1
            self._patience.behind(self, len(self._waiting))

    def _flush(self) -> None:
        """Write waiting batches, in order, and judge the rounds that this closes."""
        with self._lock:
            writes, seconds = bool(self._waiting), self._patience.seconds()
            try:
                connection = self._open(seconds)
                _wait(connection, seconds)
                while self._waiting:
                    self._try(self._waiting[0], connection)
                    self._waiting.popleft()
                self._judging.catch_up(connection)
                if self.lost > self._recorded_lost:
                    count_lost(connection, self.lost - self._recorded_lost)
                    self._recorded_lost = self.lost
            except Exception as error:  # odd values in the file may raise anything
                self._fail(error, seconds)
                return
            if writes:  # without a write it is unknown whether the file can be written
                self._patience.served()
                self._patience.behind(self, 0)
            if self.degraded is not None:
                logger.warning("ledger %s is writable again; %d batches lost", self.path, self.lost)
                self.degraded = None

    def _try(self, job: Job, connection: sqlite3.Connection) -> None:
        try:
            job(connection)
        except _HOPELESS as error:
            self.lost += 1
            logger.warning("ledger %s: one batch is not recorded: %r", self.path, error)

    def _fail(self, error: Exception, waited: float) -> None:
        self._locked = locked(error)
        if self._locked:
            self._patience.in_vain(waited)
        elif self.degraded is None:
            logger.warning(
                "ledger %s cannot be written (%s): evidence waits in memory, standings are unknown",
                self.path,
                error,
            )
        self.degraded = f"{type(error).__name__}: {error!s:.200}"
        # A connection whose file is gone or broken does not recover; a new one may.
        if self._connection is not None:
            self._connection.close()
        self._forget()

    def _open(self, seconds: float) -> sqlite3.Connection:
        if self._connection is not None and not self.path.exists():
            logger.warning("ledger %s is gone: starting a new one", self.path)
            self._connection.close()
            self._forget()
        if self._connection is None:
            self._connection = connect(self.path, seconds=seconds)
        return self._connection

    def _begin(self) -> None:
        """Start without waiting batches and without a connection."""
        self.degraded = None
        self._locked = False
        self.lost = self._recorded_lost = 0
        self._waiting = deque()
        self._forget()

    def _forget(self) -> None:
        self._connection = None
        self._judging = Judging(self.settings, self._log_changes)

    def _log_changes(
        self, connection: sqlite3.Connection, hard: list[int], clear: list[int]
    ) -> None:
        if self.announces:
            changes.warn(connection, self.path, hard, clear)

    def _read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock:
            try:
                return query(self._open(self._patience.moment))
            except (LedgerError, StateError):
                raise
            except Exception as error:
                reason = f"{type(error).__name__}: {error!s:.200}"
                raise LedgerError(f"{self.path}: expected a readable ledger: {reason}") from error

    def __getstate__(self) -> dict[str, Any]:
        hidden = ("_connection", "_judging", "_waiting")
        return {name: value for name, value in vars(self).items() if name not in hidden}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin()
        renew_in_children(self)
        close_before_forks(self)

    @property
    def file_lock(self) -> Lock:
        """The lock under which the file is used."""
        return self._lock

    def close_file(self) -> None:
        """Close the file before a fork; it is opened again by the next batch or query."""
        if self._connection is not None and not self._connection.in_transaction:
            self._connection.close()
            self._forget()

    def after_fork(self) -> None:
        """Begin anew in a forked child, which must use neither its parent's connection nor its
        waiting batches."""
        if self._connection is not None:  # it was in use for longer than the fork could wait
            inherited.append(self._connection)
        self._patience.behind(self, 0)
        self._begin()


def _wait(connection: sqlite3.Connection, seconds: float) -> None:
    """Set how many seconds later statements wait for another process's transaction."""
    connection.execute(f"PRAGMA busy_timeout = {int(seconds * 1000)}")
