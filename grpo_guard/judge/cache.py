"""A cache of rulings, in a SQLite file that several processes can share."""

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

from grpo_guard.core.forks import Lock, close_before_forks
from grpo_guard.core.quoting import one_line
from grpo_guard.core.shared_database import inherited, use_write_ahead_log
from grpo_guard.core.verdict import Cause, Finding
from grpo_guard.judge.modes import Ruling

logger = logging.getLogger("grpo_guard")
# Bump this whenever answers are read differently, so that older rulings are ignored.
_FORMAT = "grpo-guard ruling 3"
_SCHEMA = "CREATE TABLE IF NOT EXISTS rulings (key TEXT PRIMARY KEY, ruling TEXT, made REAL)"
MOST_RULINGS = 500_000  # of about 300 bytes each
# Seconds to wait for a lock while another process writes. Once a wait has timed out, writes do not
# wait again until one succeeds: a process that hangs with the file must not hold up every batch.
WAIT = 3.0
# SQLite's files next to the database. SQLite applies a log even if someone else put it there.
_BESIDE = ("-wal", "-shm", "-journal")


class RulingCache:
    """Stores rulings by a hash of everything that they depend on.

    Only judgements are cached: an outage must not be remembered. The file contains hashes and
    rulings, but neither completions nor API keys. A failing cache costs requests, never a verdict.

    Anyone who can write to the file controls verdicts, so it is created with access for its owner
    only, and a file that someone else could have written is not used. Several processes on one
    machine can share the file; SQLite's log does not work across machines on a network file system.

    The file is created if it is missing. Beyond ``most`` rulings, the oldest are deleted.
    """

    def __init__(self, path: str | Path, most: int = MOST_RULINGS) -> None:
        self._path = str(path)
        self._most = most
        self._connection: sqlite3.Connection | None = None
        self._owner = os.getpid()
        self._failed = False
        self._lock = Lock()
        close_before_forks(self)

    @property
    def file_lock(self) -> Lock:
        """The lock under which the file is used."""
        return self._lock

    def close_file(self) -> None:
        """Close the file before a fork; it is opened again when it is next used."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def get(self, keys: Sequence[str]) -> dict[str, Ruling]:
        """Return the cached rulings, by key."""
        with self._lock:
            return self._get(keys)

    def _get(self, keys: Sequence[str]) -> dict[str, Ruling]:
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
        except Exception as error:  # on a corrupted file SQLite raises more than its own errors
            self._warn(error)
        return found

    def put(self, rulings: Mapping[str, Ruling]) -> None:
        """Store rulings, except those that are not judgements."""
        rows = [
            (key, _write(key, ruling), time.time())
            for key, ruling in rulings.items()
            if ruling.cause is Cause.JUDGED
        ]
        if rows:
            with self._lock:
                self._put(rows)

    def _put(self, rows: list[tuple[str, str, float]]) -> None:
        try:
            connection = self._open()
            connection.execute(f"PRAGMA busy_timeout = {0 if self._failed else int(WAIT * 1000)}")
            with connection:
                connection.executemany("INSERT OR REPLACE INTO rulings VALUES (?, ?, ?)", rows)
                # Row numbers increase over time, so no index of times is needed.
                connection.execute(
                    "DELETE FROM rulings WHERE rowid <= (SELECT max(rowid) FROM rulings) - ?",
                    (self._most,),
                )
            self._failed = False
        except Exception as error:  # on a corrupted file SQLite raises more than its own errors
            self._warn(error)

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None and self._owner != os.getpid():
            inherited.append(self._connection)
            self._connection = None
        if self._connection is None:
            self._owner = os.getpid()
            path = os.path.realpath(self._path)  # SQLite puts its other files next to the target
            # In a folder that others can write to, they could plant a link to a file of ours.
            folders = {os.path.dirname(path), os.path.realpath(os.path.dirname(self._path) or ".")}
            _for_its_owner_alone(path, folders)
            # Used by one thread at a time, but not always by the same one.
            seconds = 0.0 if self._failed else WAIT
            connection = sqlite3.connect(path, timeout=seconds, check_same_thread=False)
            try:
                use_write_ahead_log(connection, seconds)
                connection.execute("PRAGMA synchronous=NORMAL")
                connection.execute(_SCHEMA)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _warn(self, error: Exception) -> None:
        if not self._failed:
            # The error may quote the file, which others may have written.
            reason = one_line(f"{type(error).__name__}: {error}", 200)
            logger.warning("judge cache %s: %s; continuing without it", self._path, reason)
        self._failed = True


def cache_key(*parts: object) -> str:
    """Return the SHA-256 of JSON-serialisable parts, in order, as the key of a ruling."""
    text = json.dumps((_FORMAT, *parts), sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _for_its_owner_alone(path: str, folders: set[str]) -> None:
    """Create the file if it is missing; raise PermissionError if someone else could have written to
    it, or to SQLite's files next to it."""
    # If others can write to the folder, they can add a log at any time, even after this check.
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
        raise PermissionError(f"{path}: expected your own, writable by you alone; chmod go-w")


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
    """Read a ruling from its row; None if another version wrote the row, or if the row is corrupted
    or belongs to another key. A row altered after it was written must never lead to acceptance."""
    digest, _, text = row.partition(" ") if isinstance(row, str) else ("", "", "")
    if digest != _digest(key, text):
        return None
    data = json.loads(text)
    finding = None
    if data["finding"] is not None:
        kind, message, span = data["finding"]
        finding = Finding(kind, message, span and (span[0], span[1]))
    return Ruling(data["passed"], p_yes=data["p_yes"], finding=finding)


def _digest(key: str, text: str) -> str:
    return hashlib.sha256(f"{_FORMAT} {key} {text}".encode(errors="replace")).hexdigest()[:32]
