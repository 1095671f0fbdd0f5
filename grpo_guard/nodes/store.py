"""`NodeStore`: the one place where everything that is remembered of nodes lies."""

from __future__ import annotations

import atexit
import json
import logging
import os
import re
import secrets
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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


class NodeStore:
    """All that is remembered of nodes, in one SQLite file that several processes may share.

    Evidence over rounds and counted findings are rows, so processes add to the same counts. What
    other verifiers remember is a state, taken up from the file before a batch where another process
    has written it since, and put back after it, in one transaction (`Kept`).

    Args:
        folder: Of the file ``nodes.sqlite``, made where there is none; None: a temporary one, which
            is removed when the process ends.

    Raises:
        ValueError: ``folder`` is none and cannot be made.
        LedgerError: the file in it is something else.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.path = (_temporary() if folder is None else _made(Path(folder))) / FILE
        self.lasting = folder is not None
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
        first = book_name(name)
        self._claimed[first] += 1
        count = self._claimed[first]
        return first if count == 1 else self.claim(f"{first}_{count}")


def book_name(name: str) -> str:
    """A verifier's name as a book may be called."""
    return checked_book(re.sub("[^a-z0-9_]", "_", f"_{name}".lower()).lstrip("_")[:32] or "rule")


class Kept:
    """One memory and where it lies: in a store, or in its object alone.

    Args:
        store: The store; None, or one that does not last: the memory is its object's own, and no
            time is spent on writing it.
        name: Of the memory, a second one of that name is told apart.
        save: Its state as plain JSON values.
        load: Puts a state that `save` gave in place of what is known; raises, and changes nothing,
            where it is none.
    """

    def __init__(
        self,
        store: NodeStore | None,
        name: str,
        save: Callable[[], dict[str, Any]],
        load: Callable[[dict[str, Any]], None],
    ) -> None:
        self._path = store.path if store is not None and store.lasting else None
        self._name = name if store is None else store.claim(name)
        self._save, self._load = save, load
        self._version: int | None = None
        # What this process knows and could not write is not overwritten by what others wrote: a
        # round that has begun here must not be taken back, or its honest work would be rejected.
        self._unsaved = False
        self._told = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the memory for this process: it is up to date inside, and written behind.

        No other process holds any memory of the file meanwhile, so nothing slow belongs in here.
        Where the file cannot be read or written, the memory goes on as this process knows it, and
        the log says so once.
        """
        connection = self._taken_up()
        try:
            yield
            if connection is not None:
                self._put_back(connection)
        finally:
            if connection is not None:
                connection.close()  # which rolls back what is not committed

    def refresh(self) -> None:
        """Take up what other processes have written."""
        if (connection := self._taken_up()) is not None:
            connection.close()

    def _taken_up(self) -> Book | None:
        if self._path is None:
            return None
        connection = None
        try:
            connection = connect(self._path, seconds=_PATIENCE)
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(_TABLE)
            query = "SELECT version FROM memories WHERE name = ?"
            row = connection.execute(query, (self._name,)).fetchone()
            if row is not None and row[0] != self._version and not self._unsaved:
                query = "SELECT state FROM memories WHERE name = ? AND length(state) <= ?"
                (state,) = connection.execute(query, (self._name, MAX_STATE)).fetchone() or ("",)
                self._load(json.loads(state))
                self._version = row[0]
        except Exception as error:  # odd values in the file fail in ways of their own
            self._degrade(error)
            if connection is not None:
                connection.close()
            return None
        return connection

    def _put_back(self, connection: Book) -> None:
        # Drawn, not counted: a file that was put back from a copy would have the same count again.
        row = (self._name, secrets.randbits(62), json.dumps(self._save(), separators=(",", ":")))
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
                "it", self._path, self._name, type(error).__name__, error,
            )  # fmt: skip

    def __getstate__(self) -> dict[str, Any]:
        # A copy in another process has read nothing yet.
        return vars(self) | {"_version": None, "_unsaved": False, "_told": False}


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
