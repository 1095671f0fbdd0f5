"""The ledger's database: its tables, how to open it, and how to recognise other files."""

import os
import re
import sqlite3
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar
from unicodedata import combining, normalize

from grpo_guard.core.quoting import shown_name
from grpo_guard.core.shared_database import use_write_ahead_log

_MOST_COMPARED: Final = 2000
_LONGEST: Final = 80  # number of characters of a name to compare: strangers choose names

APPLICATION_ID = 0x6772676C  # "grgl"
VERSION = 1

# clock: the ledger's own count of rounds, with the numbers that the nodes use.
# cells: one node's answers to one prompt, until its round is closed; rounds: their sums afterwards.
_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE clock (clock INTEGER PRIMARY KEY, round INTEGER);
CREATE TABLE nodes (
    id INTEGER PRIMARY KEY, name BLOB NOT NULL UNIQUE, first INTEGER NOT NULL,
    last INTEGER NOT NULL, judged INTEGER NOT NULL DEFAULT 0,
    rejected INTEGER NOT NULL DEFAULT 0, abstained INTEGER NOT NULL DEFAULT 0,
    owed INTEGER NOT NULL DEFAULT 0, empty INTEGER NOT NULL DEFAULT 0);
CREATE TABLE seen (key BLOB PRIMARY KEY, clock INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX seen_clock ON seen (clock);
CREATE TABLE cells (
    clock INTEGER NOT NULL, node INTEGER NOT NULL, prompt BLOB NOT NULL,
    judged INTEGER NOT NULL, rejected INTEGER NOT NULL,
    PRIMARY KEY (clock, node, prompt)) WITHOUT ROWID;
CREATE TABLE slots (
    clock INTEGER NOT NULL, node INTEGER NOT NULL, owed INTEGER NOT NULL, empty INTEGER NOT NULL,
    PRIMARY KEY (clock, node)) WITHOUT ROWID;
CREATE TABLE rounds (
    clock INTEGER NOT NULL, node INTEGER NOT NULL, judged INTEGER NOT NULL,
    rejected INTEGER NOT NULL, held INTEGER NOT NULL, PRIMARY KEY (clock, node)) WITHOUT ROWID;
CREATE TABLE marks (
    node INTEGER NOT NULL, kind TEXT NOT NULL, log_e REAL NOT NULL, peers INTEGER NOT NULL,
    state TEXT NOT NULL, level REAL NOT NULL, renewed INTEGER NOT NULL, since INTEGER NOT NULL,
    PRIMARY KEY (node, kind)) WITHOUT ROWID;
CREATE TABLE reasons (
    node INTEGER NOT NULL, kind TEXT NOT NULL, count INTEGER NOT NULL,
    PRIMARY KEY (node, kind)) WITHOUT ROWID;
CREATE TABLE phrases (
    node INTEGER NOT NULL, digest BLOB NOT NULL, excerpt BLOB NOT NULL, count INTEGER NOT NULL,
    last INTEGER NOT NULL, PRIMARY KEY (node, digest)) WITHOUT ROWID;
CREATE INDEX phrases_digest ON phrases (digest);
"""

TABLES = tuple(re.findall(r"CREATE TABLE (\w+)", _TABLES))
_AT_ONCE = 500
# With SQLite's default of two megabytes, the keys of a million completions would be read again for
# each insert. The memory is only allocated as the file grows.
_CACHE_KIB = 64 * 1024
# Keys fall anywhere in their table: with SQLite's default of a thousand pages, each large batch
# would be written to the log and immediately to the file as well.
_CHECKPOINT_PAGES = 16 * 1024
Key = TypeVar("Key")


def chunks(values: Sequence[Key]) -> Iterator[Sequence[Key]]:
    """Split values into chunks that fit into one statement."""
    return (values[i : i + _AT_ONCE] for i in range(0, len(values), _AT_ONCE))


class LedgerError(RuntimeError):
    """A file is not a ledger or cannot be read; the message names it and says what was expected."""


def names_in(connection: sqlite3.Connection) -> Iterator[bytes]:
    """Yield the names of nodes as stored, in descending order of judged completions."""
    query = "SELECT name FROM nodes ORDER BY judged DESC"
    return (name for (name,) in connection.execute(query))


def unknown_node(path: Path, node: str, names: Iterable[bytes]) -> LedgerError:
    """Build the error for a node not among these names, suggesting the one probably meant."""
    known = [name.decode("utf-8", "backslashreplace") for name in islice(names, _MOST_COMPARED)]
    # Without accents and in lower case: "Zoe" means "Zoë". Half of a short name may differ.
    plain = {_plain(name[:_LONGEST]): name for name in reversed(known)}
    nearest = get_close_matches(_plain(node[:_LONGEST]), plain, n=1, cutoff=0.5)
    hint = f"; did you mean {shown_name(plain[nearest[0]])}?" if nearest else ""
    return LedgerError(f"{path}: expected a node of the ledger, got {shown_name(node)}{hint}")


def _plain(name: str) -> str:
    letters = normalize("NFKD", name.lower())
    return "".join(letter for letter in letters if letter.isprintable() and not combining(letter))


def connect(path: Path, *, seconds: float, create: bool = True) -> sqlite3.Connection:
    """Open a ledger, creating it in an existing folder if it does not exist, and wait up to
    ``seconds`` for another process's transaction. Without ``create`` the file is only read, and
    never created. Raises LedgerError if the file is not a ledger, has another version, or (with
    ``create``) can be written by someone else, or sqlite3.Error if it cannot be opened or written
    now."""
    if create and not path.parent.is_dir():
        raise LedgerError(f"{path}: expected a path in an existing folder")
    if path.is_dir():
        raise LedgerError(f"{path}: expected a file, got a folder")
    if create:
        _refuse_what_others_write(path)
        return _connected(path, "mode=rwc", seconds, create)
    try:
        return _connected(path, "mode=ro", seconds, create)
    except sqlite3.OperationalError:
        # SQLite creates files next to a ledger even to read it, which needs write permission for
        # the folder. Without a log there is no writer, and the file alone holds everything.
        if Path(f"{path.resolve()}-wal").exists():
            raise
        return _connected(path, "mode=ro&immutable=1", seconds, create)


def require_usable(path: Path) -> None:
    """Raise LedgerError if `connect` would refuse what is at ``path``; nothing is created."""
    if not path.parent.is_dir():
        raise LedgerError(f"{path}: expected a path in an existing folder")
    if path.exists():
        _refuse_what_others_write(path)
        with opened(path, "a ledger"):
            pass


@contextmanager
def opened(path: Path, expected: str, *, write: bool = False) -> Iterator[sqlite3.Connection]:
    """Open an existing ledger from outside a run, for one transaction; any error becomes a
    LedgerError."""
    try:
        if not path.is_file():
            raise LedgerError(f"{path}: expected a ledger, got no such file")
        with (
            closing(connect(path, seconds=30.0 if write else 5.0, create=write)) as connection,
            transaction(connection, "BEGIN IMMEDIATE" if write else "BEGIN"),
        ):
            yield connection
    except LedgerError:
        raise
    except Exception as error:  # odd values in the file may raise anything
        raise LedgerError(f"{path}: expected {expected}, got: {error!s:.200}") from error


def _connected(path: Path, mode: str, seconds: float, create: bool) -> sqlite3.Connection:
    uri = f"{path.resolve().as_uri()}?{mode}"
    connection = sqlite3.connect(
        uri, timeout=seconds, uri=True, isolation_level=None, check_same_thread=False
    )
    try:
        _prepare(connection, path, seconds, create)
    except BaseException as error:
        connection.close()
        if isinstance(error, sqlite3.DatabaseError):
            broken = error.sqlite_errorcode & 0xFF in (
                sqlite3.SQLITE_NOTADB,
                sqlite3.SQLITE_CORRUPT,
            )
        else:  # SQLite quotes a broken schema, which need not be UTF-8
            broken = isinstance(error, UnicodeDecodeError)
        if broken:
            raise LedgerError(f"{path}: expected a ledger, got a different file") from None
        raise
    return connection


def _refuse_what_others_write(path: Path) -> None:
    """Raise LedgerError if another user can write to a ledger or to SQLite's files next to it.

    Such a user could decide which nodes are excluded. Another user's link could make us write to a
    different file of ours.
    """
    if os.name != "posix":
        return
    me, real = os.geteuid(), path.resolve()
    if path.is_symlink() and path.lstat().st_uid not in (me, 0):
        raise LedgerError(f"{path}: expected a file of your own, got another user's link")
    for file in (real, *(Path(f"{real}{end}") for end in ("-wal", "-shm", "-journal"))):
        try:
            found = file.lstat()
        except FileNotFoundError:
            continue
        if not stat.S_ISREG(found.st_mode):
            raise LedgerError(f"{file}: expected a file, got something else")
        if found.st_uid != me or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise LedgerError(
                f"{file}: expected a file that no other user can write; "
                "make it yours alone (chown, chmod go-w) or name a new one"
            )


def _prepare(connection: sqlite3.Connection, path: Path, seconds: float, create: bool) -> None:
    with transaction(connection, "BEGIN"):  # one snapshot: another process may be creating it
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        has_tables = _has_tables(connection)
    if application == APPLICATION_ID:
        if version != VERSION:
            raise LedgerError(f"{path}: expected a ledger of version {VERSION}, got {version}")
    elif tables or application or not create:
        raise LedgerError(f"{path}: expected a ledger, got another database")
    if not create:
        if not has_tables:
            raise LedgerError(f"{path}: expected the tables of a ledger, got none")
        return
    # A reader never waits for the writer, and a killed writer leaves whole transactions behind.
    use_write_ahead_log(connection, seconds)
    # FULL would survive a power cut as well, at the cost of one disk flush per batch.
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
    if not has_tables:
        _create(connection)


def _has_tables(connection: sqlite3.Connection) -> bool:
    query = "SELECT 1 FROM sqlite_master WHERE name = 'meta'"
    return connection.execute(query).fetchone() is not None


def _create(connection: sqlite3.Connection) -> None:
    with transaction(connection):
        if not _has_tables(connection):  # another process may have been faster
            for statement in _TABLES.split(";"):
                if statement.strip():
                    connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {VERSION}")


@contextmanager
def transaction(connection: sqlite3.Connection, begin: str = "BEGIN IMMEDIATE") -> Iterator[None]:
    """Run the statements inside as one transaction: all or nothing."""
    connection.execute(begin)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # On a full disk SQLite may have rolled back already.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
