"""Ledger files that are corrupted, planted, or not writable by the reader."""

import os
import pickle
import random
import sqlite3
from contextlib import suppress
from pathlib import Path

import pytest

from grpo_guard import AllOf, Guard
from grpo_guard.nodes.exclusion_verifier import ExclusionVerifier
from grpo_guard.nodes.ledger import EvidenceLedger
from grpo_guard.nodes.release import release
from grpo_guard.nodes.report import read
from grpo_guard.nodes.schema import _TABLES, LedgerError
from tests.nodes.swarm_ledger import Says, counts, one_in, play, played

ODD = (None, -1, -(2**63), 2**63 - 1, 2**55, 0, 0.5, 1e308, float("inf"), -float("inf"),
       "", "abc", "1e999", "\x00", b"", b"\xff\xfe", b"x" * 5000, "9" * 5000)  # fmt: skip


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """Contents of a ledger file with marks, slots, phrases and a pardon."""
    path = tmp_path_factory.mktemp("sound") / "run.sqlite"
    ledger = EvidenceLedger(path)
    chance = random.Random(0)
    for t in range(12):
        ledger.record(*played(t, one_in(2, chance=chance), prompts=2))
        ledger.record_slots(dict.fromkeys("abc", 8), {"a": 4}, round=t)
    ledger.close()
    release(path, "bob")
    return path.read_bytes()


def use(path):
    """Exercise every ledger operation: only LedgerError may be raised, and it abstains."""
    try:
        ledger = EvidenceLedger(path)
    except LedgerError:
        ledger = None
    if ledger is not None:
        guard = Guard(AllOf(ExclusionVerifier(ledger), Says()), ledger=ledger)
        for t in (12, 13):
            completions = played(t, prompts=1)[0]
            assert len(guard.review(completions).verdicts) == len(completions)
            ledger.record_slots(dict.fromkeys("abc", 8), {"a": 4}, round=t)
        for question in (ledger.standings, ledger.sybil_hints, lambda: ledger.standing("mal")):
            with suppress(LedgerError):
                question()
        pickle.loads(pickle.dumps(ledger))
        ledger.close()
    for question in (lambda: pickle.dumps(read(path).to_dict()), lambda: release(path, "ann")):
        with suppress(LedgerError):
            question()


@pytest.mark.parametrize("seed", range(4))
def test_flipped_bytes_raise_only_a_ledger_error(tmp_path, sound, seed):
    chance = random.Random(seed)
    for number in range(6):
        data = bytearray(sound)
        for _ in range(chance.choice((1, 3, 30))):
            # Including the schema on the first page, which is read at every opening.
            end = chance.choice((100, 4096, len(data), len(data)))
            data[chance.randrange(end)] = chance.randrange(256)
        path = tmp_path / f"{number}.sqlite"
        path.write_bytes(data)
        use(path)


def columns():
    with sqlite3.connect(":memory:") as connection:
        connection.executescript(_TABLES.replace("@", ""))
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        for (table,) in tables.fetchall():
            for _, name, *_ in connection.execute(f"PRAGMA table_info({table})").fetchall():
                yield table, name


def plant(path, sound, table, column, value, chance):
    path.write_bytes(sound)
    with sqlite3.connect(path) as connection:
        row = ""
        if chance.random() < 0.5:  # otherwise all of them
            keys = connection.execute(f"SELECT {column} FROM {table}").fetchall()
            row = f" WHERE {column} IS ?" if keys else ""
        bound = (value, chance.choice(keys)[0]) if row else (value,)
        try:
            connection.execute(f"UPDATE OR IGNORE {table} SET {column} = ?{row}", bound)
        except sqlite3.IntegrityError:  # the column does not accept such a value
            return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize(("table", "column"), list(columns()))
def test_odd_values_raise_only_a_ledger_error(tmp_path, sound, table, column):
    chance = random.Random(f"{table}.{column}")
    for number, value in enumerate(chance.sample(ODD, 3)):
        path = tmp_path / f"{number}.sqlite"
        if plant(path, sound, table, column, value, chance):
            use(path)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE meta SET value = 36028797018963968 WHERE key = 'closed'",
        "UPDATE meta SET value = 36028797018963968 WHERE key = 'judged'",
        "UPDATE meta SET value = 'abc' WHERE key = 'salt'",
        "UPDATE clock SET clock = clock + 36028797018963968",
        "UPDATE cells SET judged = 0",
        "UPDATE cells SET judged = 'abc'",
        "UPDATE rounds SET held = -1",
        "UPDATE rounds SET judged = 1e999",
        "UPDATE slots SET owed = 'abc'",
        "UPDATE marks SET state = 'abc'",
        "UPDATE marks SET level = -1",
        "UPDATE marks SET renewed = x'ff'",
    ],
)
def test_odd_values_degrade_it_and_are_reported(tmp_path, sound, statement):
    path = tmp_path / "run.sqlite"
    path.write_bytes(sound)
    with sqlite3.connect(path) as connection:
        assert connection.execute(statement).rowcount > 0
    ledger = EvidenceLedger(path)
    play(ledger, 4, start=12)
    assert ledger.degraded
    verdicts = ExclusionVerifier(ledger).verify(played(0)[0])
    assert not any(v.accepted for v in verdicts)


def test_file_of_another_user_or_writable_by_all_is_refused(tmp_path, sound):
    path = tmp_path / "run.sqlite"
    path.write_bytes(sound)
    for mode in (0o664, 0o646):
        path.chmod(mode)
        with pytest.raises(LedgerError, match="no other user can write"):
            EvidenceLedger(path)
        assert read(path).nodes  # reading it is still allowed
    path.chmod(0o644)
    # Owned by the reader, with the file's mode.
    (tmp_path / "run.sqlite-shm").unlink(missing_ok=True)
    wal = tmp_path / "run.sqlite-wal"
    wal.touch()
    wal.chmod(0o666)
    with pytest.raises(LedgerError, match="-wal: expected a file that no other user"):
        EvidenceLedger(path)
    wal.unlink()
    EvidenceLedger(path).close()
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
        with pytest.raises(LedgerError, match="no other user can write"):
            EvidenceLedger(path)


def test_only_own_links_are_followed(tmp_path, sound):
    (tmp_path / "real.sqlite").write_bytes(sound)
    link = tmp_path / "link.sqlite"
    link.symlink_to("real.sqlite")
    EvidenceLedger(link).close()
    (tmp_path / "side.sqlite").write_bytes(sound)
    (tmp_path / "side.sqlite-wal").symlink_to("real.sqlite")
    with pytest.raises(LedgerError, match="expected a file"):
        EvidenceLedger(tmp_path / "side.sqlite")
    if os.geteuid() == 0:
        target = tmp_path / "not there yet"
        planted = tmp_path / "planted.sqlite"
        planted.symlink_to(target)
        os.chown(planted, 65534, 65534, follow_symlinks=False)
        with pytest.raises(LedgerError, match="another user's link"):
            EvidenceLedger(planted)
        assert not target.exists()


def as_stranger(folder, path):
    """Run `read` in a process without write permission; return the number of nodes or the error."""
    told, tell = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.chdir(folder)
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            answer = str(len(read(path).nodes))
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(tell, answer.encode()[:2000])
        os._exit(0)
    os.waitpid(child, 0)
    answer = os.read(told, 2000).decode()
    os.close(told)
    os.close(tell)
    return answer


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs another user")
def test_reader_needs_no_write_permission(tmp_path, sound, monkeypatch):
    folder = tmp_path / "of the run"
    folder.mkdir()
    monkeypatch.chdir(folder)
    ledger = EvidenceLedger("run.sqlite")
    play(ledger, 3)
    folder.chmod(0o555)
    path = Path("run.sqlite")
    for parent in (folder, *folder.parents):
        if parent.stat().st_uid == os.geteuid() and not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o011)
    try:
        assert as_stranger(folder, path) == "4"  # while it is being written
        folder.chmod(0o755)
        ledger.close()
        folder.chmod(0o555)
        assert not Path("run.sqlite-wal").exists()
        assert as_stranger(folder, path) == "4"  # and afterwards
    finally:
        folder.chmod(0o755)
    assert counts(EvidenceLedger("run.sqlite"))
