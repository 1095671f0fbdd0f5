"""`NodeStore`: the one place where everything that is remembered of nodes lies."""

from __future__ import annotations

import atexit
import json
import logging
import os
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from grpo_guard.nodes.ledger import EvidenceLedger
from grpo_guard.nodes.schema import Book, checked_book, connect

logger = logging.getLogger("grpo_guard")

FILE = "nodes.sqlite"
MAX_STATE = 256 * 2**20
"""Characters of one memory's state that are read: counts are bounded, a file that is not ours is
not."""
_PATIENCE = 30.0
_TABLE = """
CREATE TABLE IF NOT EXISTS memories (
    name TEXT PRIMARY KEY, version INTEGER NOT NULL, state TEXT NOT NULL) WITHOUT ROWID
"""


class Remembers(Protocol):
    """What remembers something of nodes, and can say it as plain JSON values."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class NodeStore:
    """All that is remembered of nodes, in one SQLite file that several processes may share.

    Evidence over rounds and counted findings are rows, so processes add to the same counts. What
    other verifiers remember is a state, taken up from the file before a batch where another process
    has written it since, and put back after it, in one transaction (`held`).

    Args:
        folder: Of the file ``nodes.sqlite``, made where there is none; None: a temporary one, which
            is removed when the process ends.

    Raises:
        ValueError: ``folder`` is none and cannot be made.
        LedgerError: the file in it is something else.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.path = (_temporary() if folder is None else _made(Path(folder))) / FILE
        self._versions: dict[str, int] = {}
        self._degraded: set[str] = set()
        self._claimed = Counter[str]()

    def ledger(self, book: str = "", **options: Any) -> EvidenceLedger:
        """Evidence on nodes; each ``book`` is one of its own.

        Args:
            book: Empty for the guard's rejections; else small letters, digits and ``_``.
            **options: Of `EvidenceLedger`.
        """
        return EvidenceLedger(self.path, book=book, **options)

    def claim(self, name: str) -> str:
        """A name for a memory that is no other's here: a second "recurrence" is "recurrence_2".

        The same in every process that builds the same guard.
        """
        self._claimed[name] += 1
        count = self._claimed[name]
        return name if count == 1 else f"{name}_{count}"

    @contextmanager
    def held(self, name: str, memory: Remembers) -> Iterator[None]:
        """Hold a memory for this process: it is up to date inside, and written behind.

        No other process holds any memory of the file meanwhile, so nothing slow belongs in here.
        Where the file cannot be read or written, the memory goes on as this process knows it, and
        the log says so once.

        Args:
            name: Of the memory, the same in all processes: small letters, digits and ``_``.
            memory: Changed in place where another process has written since.

        Raises:
            ValueError: the name is none.
        """
        connection = self._taken_up(checked_book(name), memory)
        try:
            yield
            if connection is not None:
                self._put_back(connection, name, memory)
        finally:
            if connection is not None:
                connection.close()  # which rolls back what is not committed

    def _taken_up(self, name: str, memory: Remembers) -> Book | None:
        connection = None
        try:
            connection = connect(self.path, seconds=_PATIENCE)
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(_TABLE)
            query = "SELECT version FROM memories WHERE name = ?"
            row = connection.execute(query, (name,)).fetchone()
            if row is not None and row[0] != self._versions.get(name):
                query = "SELECT state FROM memories WHERE name = ? AND length(state) <= ?"
                (state,) = connection.execute(query, (name, MAX_STATE)).fetchone() or ("",)
                memory.load_state_dict(json.loads(state))
            self._versions[name] = 0 if row is None else row[0]
        except Exception as error:  # odd values in the file fail in ways of their own
            self._degrade(name, error)
            if connection is not None:
                connection.close()
            return None
        return connection

    def _put_back(self, connection: Book, name: str, memory: Remembers) -> None:
        state = json.dumps(memory.state_dict(), separators=(",", ":"))
        version = self._versions[name] + 1
        try:
            row = (name, version, state)
            connection.execute("INSERT OR REPLACE INTO memories VALUES (?, ?, ?)", row)
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._degrade(name, error)
        else:
            self._versions[name] = version
            self._degraded.discard(name)

    def _degrade(self, name: str, error: Exception) -> None:
        if name not in self._degraded:
            self._degraded.add(name)
            logger.warning(
                "%s: %s is neither read nor written (%s: %.200s); it goes on as this process knows "
                "it", self.path, name, type(error).__name__, error,
            )  # fmt: skip

    def __getstate__(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "_claimed": self._claimed,
        }  # a copy in another process has read nothing yet

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._versions, self._degraded = {}, set()


def in_folder(path: Path) -> Path:
    """The file of a folder's store; of a file the file itself."""
    return path / FILE if path.is_dir() else path


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"state: expected a folder that exists or can be made, got {str(folder)!r} "
            f"({error.strerror})"
        ) from None
    return folder


def _temporary() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="grpo-guard-"))
    atexit.register(_remove, folder, os.getpid())
    return folder


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # and not a fork of the process that made it
        shutil.rmtree(folder, ignore_errors=True)
