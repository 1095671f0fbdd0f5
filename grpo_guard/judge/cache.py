"""Rulings that are known already, in a SQLite file that several processes share."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import sqlite3
import stat
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from grpo_guard.judge.modes import Ruling
from grpo_guard.verdict import Cause, Finding

logger = logging.getLogger("grpo_guard")
# Changes when the same answer would be read differently: rulings of before are then asked anew.
_FORMAT = "grpo-guard ruling 2"
_SCHEMA = "CREATE TABLE IF NOT EXISTS rulings (key TEXT PRIMARY KEY, ruling TEXT, made REAL)"


class RulingCache:
    """Rulings by a hash of everything that they depend on.

    Only judgements at temperature 0 are kept: an outage must not be remembered, and what is drawn
    anew each time is not one answer. The file holds hashes and rulings, no completions and no keys.
    A cache that fails costs requests, never a verdict.

    Whoever can write the file decides verdicts. It is made for its owner alone, and one that
    belongs to somebody else or that everybody may write is not used. Several processes of one
    machine share it; SQLite's log does not work across machines on a network file system.

    Args:
        path: Of the file; made where it is missing.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = str(path)
        self._connection: sqlite3.Connection | None = None
        self._failed = False

    def get(self, keys: Sequence[str]) -> dict[str, Ruling]:
        """The rulings that are known, by key."""
        found: dict[str, Ruling] = {}
        try:
            connection = self._open()
            for key in set(keys):
                row = connection.execute(
                    "SELECT ruling FROM rulings WHERE key = ?", (key,)
                ).fetchone()
                ruling = _read(row[0]) if row else None
                if ruling is not None:
                    found[key] = ruling
        except (sqlite3.Error, OSError) as error:
            self._warn(error)
        return found

    def put(self, rulings: Mapping[str, Ruling]) -> None:
        """Keep rulings; those that are no judgements are left out."""
        rows = [
            (key, _write(ruling), time.time())
            for key, ruling in rulings.items()
            if ruling.cause is Cause.JUDGED
        ]
        if not rows:
            return
        try:
            with self._open() as connection:
                connection.executemany("INSERT OR REPLACE INTO rulings VALUES (?, ?, ?)", rows)
        except (sqlite3.Error, OSError) as error:
            self._warn(error)

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            _for_its_owner_alone(self._path)
            # One thread at a time uses it, but not always the same one.
            connection = sqlite3.connect(self._path, timeout=10, check_same_thread=False)
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute(_SCHEMA)
            self._connection = connection
        return self._connection

    def _warn(self, error: sqlite3.Error | OSError) -> None:
        if not self._failed:
            logger.warning("judge cache %s: %s; going on without it", self._path, error)
        self._failed = True


def cache_key(*parts: object) -> str:
    """SHA-256 over parts that JSON can hold, in order."""
    text = json.dumps((_FORMAT, *parts), sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _for_its_owner_alone(path: str) -> None:
    """Make the file where it is missing.

    Raises:
        PermissionError: somebody else could have written it.
    """
    if os.name != "posix":
        return
    try:
        found = os.stat(path)
    except FileNotFoundError:
        # Only a new file is opened here: closing any descriptor of a file drops the locks that
        # SQLite holds on it elsewhere in the process.
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        found = os.stat(path)
    if found.st_uid != os.geteuid() or found.st_mode & stat.S_IWOTH:
        raise PermissionError("expected a file that nobody else can write")


def _write(ruling: Ruling) -> str:
    finding = ruling.finding.to_dict() if ruling.finding else None
    return json.dumps({"passed": ruling.passed, "p_yes": ruling.p_yes, "finding": finding})


class _Found(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    kind: str
    message: str
    char_span: tuple[int, int] | None = Field(strict=False)
    token_span: None = None


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    passed: bool | None
    p_yes: float | None = Field(ge=0, le=1)
    finding: _Found | None


def _read(text: object) -> Ruling | None:
    """A ruling from its row; None for one that another version wrote differently, or that is
    corrupted: what is not exactly a ruling must not accept anything."""
    try:
        row = _Row.model_validate_json(text if isinstance(text, str) else "")
    except ValidationError:
        return None
    found = row.finding
    finding = Finding(found.kind, found.message, found.char_span) if found else None
    return Ruling(row.passed, p_yes=row.p_yes, finding=finding)
