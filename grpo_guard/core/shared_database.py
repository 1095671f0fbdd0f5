"""SQLite files that several processes create and write at the same time."""

import sqlite3
import time
from typing import Final

_PAUSE: Final = 0.01
"""Seconds between two attempts to switch a file to the write-ahead log."""
inherited: Final[list[sqlite3.Connection]] = []
"""Connections of a parent process, which its forks must neither use nor close. They are kept here,
because garbage collection would close them."""


def locked(error: BaseException) -> bool:
    """Whether the error means only that another process has locked the file."""
    return isinstance(error, sqlite3.OperationalError) and (
        getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    )


def use_write_ahead_log(connection: sqlite3.Connection, seconds: float) -> None:
    """Switch a database to SQLite's write-ahead log, so that readers never wait for a writer.

    When all ranks of a run create one file at once, SQLite refuses the switch immediately, whatever
    the connection's timeout. This repeats it for up to ``seconds`` instead; 0 means one attempt.
    Raises sqlite3.Error if the file cannot be switched, or is still locked after that time.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if not locked(error) or time.monotonic() >= deadline:
                raise
        time.sleep(_PAUSE)
