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

from grpo_guard.judge.errors import one_line
from grpo_guard.judge.modes import Ruling
from grpo_guard.verdict import Cause, Finding

logger = logging.getLogger("grpo_guard")
# Changes when the same answer would be read differently: rulings of before are then asked anew.
_FORMAT = "grpo-guard ruling 3"
_SCHEMA = "CREATE TABLE IF NOT EXISTS rulings (key TEXT PRIMARY KEY, ruling TEXT, made REAL)"
# About 300 bytes each.
MOST_RULINGS = 500_000
# Seconds that rulings wait to be kept while another process writes; after a wait in vain none wait
# until some could be kept. A process that hangs with the file must not hold up each batch.
WAIT = 3.0
# What SQLite reads beside its file. A log that somebody else has put there is applied to it.
_BESIDE = ("-wal", "-shm", "-journal")


class RulingCache:
    """Rulings by a hash of everything that they depend on.

    Only judgements are kept: an outage must not be remembered. The file holds hashes and rulings,
    no completions and no keys. A cache that fails costs requests, never a verdict.

    Whoever can write the file decides verdicts. It is made for its owner alone, and one that
    somebody else could have written is not used. Several processes of one machine share it;
    SQLite's log does not work across machines on a network file system.

    Args:
        path: Of the file; made where it is missing.
        most: Rulings that are kept; the oldest go first.
    """

    def __init__(self, path: str | Path, most: int = MOST_RULINGS) -> None:
        self._path = str(path)
        self._most = most
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
                ruling = _read(key, row[0]) if row else None
                if ruling is not None:
                    found[key] = ruling
        except Exception as error:  # SQLite raises more than its own errors on what is corrupted
            self._warn(error)
        return found

    def put(self, rulings: Mapping[str, Ruling]) -> None:
        """Keep rulings; those that are no judgements are left out."""
        rows = [
            (key, _write(key, ruling), time.time())
            for key, ruling in rulings.items()
            if ruling.cause is Cause.JUDGED
        ]
        if not rows:
            return
        try:
            connection = self._open()
            connection.execute(f"PRAGMA busy_timeout = {0 if self._failed else int(WAIT * 1000)}")
            with connection:
                connection.executemany("INSERT OR REPLACE INTO rulings VALUES (?, ?, ?)", rows)
                # Numbers of rows go up with time, so that no index of times is needed.
                connection.execute(
                    "DELETE FROM rulings WHERE rowid <= (SELECT max(rowid) FROM rulings) - ?",
                    (self._most,),
                )
            self._failed = False
        except Exception as error:  # SQLite raises more than its own errors on what is corrupted
            self._warn(error)

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            path = os.path.realpath(self._path)  # SQLite's other files stand beside a link's target
            # Where others may write, they can put a link to some other file of ours.
            folders = {os.path.dirname(path), os.path.realpath(os.path.dirname(self._path) or ".")}
            _for_its_owner_alone(path, folders)
            # One thread at a time uses it, but not always the same one.
            connection = sqlite3.connect(path, timeout=WAIT, check_same_thread=False)
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute(_SCHEMA)
            self._connection = connection
        return self._connection

    def _warn(self, error: Exception) -> None:
        if not self._failed:
            said = one_line(
                f"{type(error).__name__}: {error}", 200
            )  # may quote what is in the file
            logger.warning("judge cache %s: %s; going on without it", self._path, said)
        self._failed = True


def cache_key(*parts: object) -> str:
    """SHA-256 over parts that JSON can hold, in order."""
    text = json.dumps((_FORMAT, *parts), sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _for_its_owner_alone(path: str, folders: set[str]) -> None:
    """Make the file where it is missing.

    Raises:
        PermissionError: somebody else could have written it, or what SQLite reads beside it.
    """
    if os.name != "posix":
        return
    # Where others may write they can put a log beside the file at any moment, also after a look.
    for folder in folders:
        _require_own(folder, {os.geteuid(), 0})
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    for name in (path, *(path + end for end in _BESIDE)):
        with contextlib.suppress(FileNotFoundError):
            _require_own(name, {os.geteuid()})


def _require_own(path: str, owners: set[int]) -> None:
    found = os.lstat(path)
    kind = stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)
    if not kind or found.st_uid not in owners or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(
            f"{path}: expected one of yours that nobody else can write; chmod go-w"
        )


def _write(key: str, ruling: Ruling) -> str:
    found = ruling.finding
    text = json.dumps(
        {
            "passed": ruling.passed,
            "p_yes": ruling.p_yes,
            "finding": found and [found.kind, found.message, found.char_span],
        }
    )
    return f"{_digest(key, text)} {text}"


def _read(key: str, row: object) -> Ruling | None:
    """A ruling from its row; None for one that another version wrote differently, or that is
    corrupted or another key's: what is not exactly what was written must not accept anything."""
    digest, _, text = row.partition(" ") if isinstance(row, str) else ("", "", "")
    if digest != _digest(key, text):
        return None
    said = json.loads(text)
    finding = None
    if said["finding"] is not None:
        kind, message, span = said["finding"]
        finding = Finding(kind, message, span and (span[0], span[1]))
    return Ruling(said["passed"], p_yes=said["p_yes"], finding=finding)


def _digest(key: str, text: str) -> str:
    return hashlib.sha256(f"{_FORMAT} {key} {text}".encode(errors="replace")).hexdigest()[:32]
