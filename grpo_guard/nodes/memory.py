"""What is known of nodes: under one lock, in a store or in its object, and as JSON."""

from __future__ import annotations

import json
import logging
import secrets
import sqlite3
import threading
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from grpo_guard.nodes.schema import Book, connect
from grpo_guard.nodes.store import NodeStore

logger = logging.getLogger("grpo_guard")

MAX_STATE = 256 * 2**20
"""Characters of one memory's state that are read: counts are bounded, a file that is not ours is
not."""
_PATIENCE = 30.0
_TABLE = """
CREATE TABLE IF NOT EXISTS memories (
    name TEXT PRIMARY KEY, version INTEGER NOT NULL, state TEXT NOT NULL) WITHOUT ROWID
"""


class Memory:
    """Safe to share between threads and, in a store that lasts, between processes.

    Args:
        store: Where it lies, for several processes and the next start; None, or one that does not
            last: in this object, and no time is spent on writing it.
        name: Of the memory in the store; a second one of that name is told apart.
    """

    def __init__(self, store: NodeStore | None, name: str) -> None:
        self._lock = threading.RLock()
        self._path = store.path if store is not None and store.lasting else None
        self._key = name if store is None else store.claim(name)
        self._version: int | None = None
        # What this process knows and could not write is not overwritten by what others wrote: a
        # round that has begun here must not be taken back, or its honest work would be rejected.
        self._unsaved = False
        self._told = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold it to change it: it is up to date inside, and written behind.

        No other process holds any memory of the file meanwhile, so nothing slow belongs in here.
        Where the file cannot be read or written, the memory goes on as this process knows it, and
        the log says so once.
        """
        with self._lock:
            connection = self._taken_up()
            try:
                yield
                if connection is not None:
                    self._put_back(connection)
            finally:
                if connection is not None:
                    connection.close()  # which rolls back what is not committed

    @contextmanager
    def fresh(self) -> Iterator[None]:
        """Hold it to read it, with what other processes have written."""
        with self._lock:
            if (connection := self._taken_up()) is not None:
                connection.close()
            yield

    def state_dict(self) -> dict[str, Any]:
        """What is known as plain JSON values."""
        with self.fresh():
            return self._state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` gave, in place of what is known.

        Raises:
            ValueError: it is not of that form.
        """
        with self.held():
            self._take_up(state)

    @abstractmethod
    def _state(self) -> dict[str, Any]:
        """What `state_dict` gives."""

    @abstractmethod
    def _take_up(self, state: dict[str, Any]) -> None:
        """What `load_state_dict` does; it raises, and changes nothing, where it is no state."""

    def _taken_up(self) -> Book | None:
        """The file, held, with its state taken up; None where there is none or it is degraded."""
        if self._path is None:
            return None
        connection = None
        try:
            connection = connect(self._path, seconds=_PATIENCE)
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(_TABLE)
            query = "SELECT version FROM memories WHERE name = ?"
            row = connection.execute(query, (self._key,)).fetchone()
            if row is not None and row[0] != self._version and not self._unsaved:
                query = "SELECT state FROM memories WHERE name = ? AND length(state) <= ?"
                (state,) = connection.execute(query, (self._key, MAX_STATE)).fetchone() or ("",)
                self._take_up(json.loads(state))
                self._version = row[0]
        except Exception as error:  # odd values in the file fail in ways of their own
            self._degrade(error)
            if connection is not None:
                connection.close()
            return None
        return connection

    def _put_back(self, connection: Book) -> None:
        # Drawn, not counted: a file that was put back from a copy would have the same count again.
        row = (self._key, secrets.randbits(62), json.dumps(self._state(), separators=(",", ":")))
        try:
            connection.execute("INSERT OR REPLACE INTO memories VALUES (?, ?, ?)", row)
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._degrade(error)
        else:
            self._version, self._unsaved, self._told = row[1], False, False

    def _degrade(self, error: Exception) -> None:
        self._unsaved = True
        if not self._told:
            self._told = True
            logger.warning(
                "%s: %s is neither read nor written (%s: %.200s); it goes on as this process knows "
                "it", self._path, self._key, type(error).__name__, error,
            )  # fmt: skip

    def __getstate__(self) -> dict[str, Any]:
        # A copy in another process has read nothing yet.
        new = {"_version": None, "_unsaved": False, "_told": False}
        return {k: v for k, v in self.__dict__.items() if k != "_lock"} | new

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.RLock())
