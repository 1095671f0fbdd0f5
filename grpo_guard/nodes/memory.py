"""Base class of all per-node memories, which are locked, kept in a store or an object, and saved as
JSON."""

import json
import logging
import secrets
import sqlite3
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from grpo_guard.core.forks import Lock, close_before_forks, renew_in_children
from grpo_guard.core.shared_database import locked
from grpo_guard.nodes.patience import patience_with
from grpo_guard.nodes.saved import StateError
from grpo_guard.nodes.schema import connect
from grpo_guard.nodes.store import NodeStore

logger = logging.getLogger("grpo_guard")
T = TypeVar("T")

MAX_STATE = 256 * 2**20
"""Maximum number of characters read from one memory's state: our counts are bounded, but a file
written by others may not be."""
MAX_UNWRITTEN = 64
"""Maximum number of changes kept while a file cannot be written."""
MAX_UNREAD = 8
"""Maximum number of unreadable states kept for one memory."""
HAS_MEMORIES = "SELECT 1 FROM sqlite_master WHERE name = 'memories'"
_TABLE = """
CREATE TABLE IF NOT EXISTS memories (
    name TEXT PRIMARY KEY, version INTEGER NOT NULL, state TEXT NOT NULL) WITHOUT ROWID
"""


class Memory:
    """A memory of nodes, safe to share between threads and, in a lasting store, between processes.

    Without a store, or with a temporary one, the memory exists only in this object and is not
    written. In a store, a second memory of the same name gets a suffix. If the store has no memory
    of this name yet, the memory that an earlier release saved under the name given by ``former`` is
    continued.

    A state that this guard cannot read, because it is another guard's or damaged, is kept in the
    store under another name and is never overwritten.

    Attributes:
        lost: Number of changes that never reached a file: they could not be written, were too many
            to keep, and then another process wrote the file.
    """

    def __init__(
        self, store: NodeStore | None, name: str, *, former: Callable[[str], str] | None = None
    ) -> None:
        self._lock = Lock()
        self._path = store.path if store is not None and store.lasting else None
        self._key = name if store is None else store.claim(name)
        self._former = None if former is None else former(self._key)
        self._begin()
        self._prepare_for_forks()

    def _prepare_for_forks(self) -> None:
        renew_in_children(self)
        if self._path is not None:
            close_before_forks(self)

    @property
    def store_path(self) -> Path | None:
        """The file that the memory writes to; None if the memory exists only in this process."""
        return self._path

    def _begin(self) -> None:
        """Reset to a state in which nothing was read or written yet."""
        self._version: int | None = None
        # Functions that repeat the changes that could not be written. If another process has
        # written meanwhile, they are applied to its state, so that no evidence of either is lost.
        self._unwritten: deque[Callable[[], object]] = deque(maxlen=MAX_UNWRITTEN)
        self._dropped = self.lost = 0
        # The version of a state in the file that cannot be read, and the reason. The next write
        # renames that state.
        self._unread: tuple[int, str] | None = None
        self._warned = False

    @contextmanager
    def held(self, again: Callable[[], object]) -> Iterator[None]:
        """Hold the memory for a change: it is up to date on entry and written on exit.

        Until then no other process can hold any memory in the file, so do nothing slow inside. If
        the file is locked for long (see `Patience`), or cannot be read or written, this process
        continues with the state that it has and logs that once; the change is written later, by
        ``again``, which repeats it on another state and must not raise.
        """
        with self._lock:
            connection = self._taken_up()
            try:
                yield
                if connection is None or not self._put_back(connection):
                    self._keep(again)
            finally:
                if connection is not None:
                    connection.close()  # rolls back anything not committed

    def change(self, apply: Callable[[], T]) -> T:
        """Apply one change to the memory (see `held`), and return what ``apply`` returns."""
        with self.held(apply):
            return apply()

    @contextmanager
    def fresh(self) -> Iterator[None]:
        """Hold the memory for reading, with other processes' changes, but without waiting for their
        writes."""
        with self._lock:
            if self._path is not None and self._path.exists():
                seconds = patience_with(self._path).moment
                try:
                    with closing(connect(self._path, seconds=seconds)) as connection:
                        self._take_news(connection)
                except Exception as error:  # odd values in the file may raise anything
                    if not locked(error):
                        self._degrade(error)
            yield

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain JSON values."""
        with self.fresh():
            return self._state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace the state with one returned by `state_dict`; raises ValueError for any other
        form."""
        with self.held(lambda: self._take_up(state)):
            self._take_up(state)
            self._unwritten.clear()  # these changes belong to the state that was replaced
            self._dropped = 0

    @abstractmethod
    def _state(self) -> dict[str, Any]:
        """Implement `state_dict`."""

    @abstractmethod
    def _take_up(self, state: dict[str, Any]) -> None:
        """Implement `load_state_dict`; raise and change nothing if the state is malformed."""

    def _taken_up(self) -> sqlite3.Connection | None:
        """Lock the file, load its state, and return the connection; None if there is no file or it
        cannot be used."""
        if self._path is None:
            return None
        connection = None
        patience = patience_with(self._path)
        seconds = patience.seconds()
        try:
            connection = connect(self._path, seconds=seconds)
            connection.execute("BEGIN IMMEDIATE")
            patience.served()
            connection.execute(_TABLE)
            self._take_news(connection)
        except Exception as error:  # odd values in the file may raise anything
            if locked(error):
                patience.in_vain(seconds)
            else:
                self._degrade(error)
            if connection is not None:
                connection.close()
            return None
        return connection

    def _take_news(self, connection: sqlite3.Connection) -> None:
        """Load what another process has written since, and repeat this process's unwritten
        changes."""
        if not connection.execute(HAS_MEMORIES).fetchone():
            return
        query = "SELECT name, version FROM memories WHERE name IN (?, ?) ORDER BY name != ?"
        own, former = self._key, self._former if self._version is None else None
        row = connection.execute(query, (own, former, own)).fetchone()
        if row is None or row[1] in (self._version, self._unread and self._unread[0]):
            return
        query = "SELECT state FROM memories WHERE name = ? AND length(state) <= ?"
        (state,) = connection.execute(query, (row[0], MAX_STATE)).fetchone() or ("",)
        try:
            self._take_up(json.loads(state))
        except Exception as error:  # odd values may raise anything
            why = error.why if isinstance(error, StateError) else StateError.why
            self._unread = row[1], why
            return
        self._version, self._unread = row[1], None
        if self._dropped:
            self.lost, lost, self._dropped = self.lost + self._dropped, self._dropped, 0
            logger.warning(
                "%s can be written again, but %d changes of %s are lost: more than %d waited, and "
                "another process has written meanwhile", self._path, lost, self._key, MAX_UNWRITTEN,
            )  # fmt: skip
        for change in self._unwritten:
            change()

    def _put_back(self, connection: sqlite3.Connection) -> bool:
        """Write the state; return whether that succeeded."""
        assert self._path is not None
        # A random version, not a counter: a file restored from a copy would repeat the same count.
        row = (self._key, secrets.randbits(62), json.dumps(self._state(), separators=(",", ":")))
        try:
            kept = self._rename_unread(connection) if self._unread else None
            connection.execute("INSERT OR REPLACE INTO memories VALUES (?, ?, ?)", row)
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._degrade(error)
            return False
        if kept and self._unread:
            logger.warning(
                "%s: this guard cannot use what is saved as %s (%s); it is kept as %s, and this "
                "process continues with its own state", self._path, self._key, self._unread[1], kept
            )  # fmt: skip
        self._version, self._unread, self._warned = row[1], None, False
        self._unwritten.clear()
        self._dropped = 0  # the state just written includes the dropped changes
        patience_with(self._path).behind(self, 0)
        return True

    def _rename_unread(self, connection: sqlite3.Connection) -> str | None:
        """Rename the state that could not be read; return its new name, or None if it is gone."""
        query = "SELECT count(*) FROM memories WHERE name GLOB ?"
        (before,) = connection.execute(query, (f"{self._key}_unread_*",)).fetchone()
        # At the limit, the latest one is replaced; the oldest ones are worth most and are kept.
        name = f"{self._key}_unread_{min(before + 1, MAX_UNREAD)}"
        query = "UPDATE OR REPLACE memories SET name = ? WHERE name = ?"
        return name if connection.execute(query, (name, self._key)).rowcount else None

    def _keep(self, change: Callable[[], object]) -> None:
        if self._path is None:
            return
        self._dropped += len(self._unwritten) == MAX_UNWRITTEN
        self._unwritten.append(change)
        patience_with(self._path).behind(self, len(self._unwritten))

    def _degrade(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "%s: %s is neither read nor written (%.200s); this process continues with its own "
                "state", self._path, self._key, error,
            )  # fmt: skip

    def __getstate__(self) -> dict[str, Any]:
        # A copy in another process has read nothing yet; unwritten changes stay with the original.
        return {k: v for k, v in vars(self).items() if k != "_unwritten"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        Memory._begin(self)
        self._prepare_for_forks()

    @property
    def file_lock(self) -> Lock:
        """The lock under which the file is open."""
        return self._lock

    def close_file(self) -> None:
        """Do nothing: the file is open only during a change, which `file_lock` keeps out."""

    def after_fork(self) -> None:
        """Read the file again in a forked child, whose parent may be in the middle of a change."""
        if self._path is not None:
            patience_with(self._path).behind(self, 0)
        Memory._begin(self)
