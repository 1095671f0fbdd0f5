"""Rulings that are known already, in a SQLite file that several processes share."""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from grpo_guard.judge.modes import Ruling
from grpo_guard.verdict import Cause, Finding

logger = logging.getLogger("grpo_guard")
_SCHEMA = "CREATE TABLE IF NOT EXISTS rulings (key TEXT PRIMARY KEY, ruling TEXT, made REAL)"


class RulingCache:
    """Rulings by a hash of everything that they depend on.

    Only judgements at temperature 0 are kept: an outage must not be remembered, and what is drawn
    anew each time is not one answer. The file holds hashes and rulings, no completions and no keys.
    A cache that fails costs requests, never a verdict.

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
        except sqlite3.Error as error:
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
        except sqlite3.Error as error:
            self._warn(error)

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            # One thread at a time uses it, but not always the same one.
            connection = sqlite3.connect(self._path, timeout=10, check_same_thread=False)
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute(_SCHEMA)
            self._connection = connection
        return self._connection

    def _warn(self, error: sqlite3.Error) -> None:
        if not self._failed:
            logger.warning("judge cache %s: %s; going on without it", self._path, error)
        self._failed = True


def cache_key(*parts: object) -> str:
    """SHA-256 over parts that JSON can hold, in order."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _write(ruling: Ruling) -> str:
    finding = ruling.finding.to_dict() if ruling.finding else None
    return json.dumps({"passed": ruling.passed, "p_yes": ruling.p_yes, "finding": finding})


def _read(text: str) -> Ruling | None:
    """A ruling from its row; None for a row that another version wrote differently."""
    try:
        data = json.loads(text)
        found = data["finding"]
        span = found and found["char_span"]
        finding = found and Finding(
            str(found["kind"]), str(found["message"]), tuple(span) if span else None
        )
        return Ruling(data["passed"], p_yes=data["p_yes"], finding=finding)
    except (ValueError, KeyError, TypeError):
        return None
