"""A killed writer, two writers, a full disk, a lock that is never released."""

import contextlib
import logging
import random
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_guard import AllOf, Guard
from grpo_guard.core.verdict import Cause, accept
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.nodes.exclusion_verifier import ExclusionVerifier
from grpo_guard.nodes.ledger import MAX_WAITING, EvidenceLedger
from grpo_guard.nodes.schema import LedgerError
from grpo_guard.nodes.standing import State
from tests.helpers.subprocesses import environment
from tests.nodes.swarm_ledger import NODES, one_in, played

WORKER = Path(__file__).parent / "worker_ledger.py"


class Yes(CompletionVerifier):
    name = "yes"

    def verify(self, batch):
        return [accept("yes")] * len(batch)


def start(path, part, first, last):
    command = [sys.executable, str(WORKER), str(path), part, str(first), str(last)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())


def totals(path):
    return {s.node: (s.judged, s.rejected) for s in EvidenceLedger(path).standings()}


def whole(path):
    with sqlite3.connect(path) as connection:
        return connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def play(ledger, first, last):
    for t in range(first, last):
        ledger.record(*played(t, one_in(6, chance=random.Random(t))))


def fill(ballast):
    """Fill the disk until nothing more fits."""
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


@pytest.mark.slow
def test_killed_writer_leaves_whole_rounds(tmp_path):
    path, written, chance = tmp_path / "run.sqlite", -1, random.Random(0)
    for _ in range(12):
        # Each process starts where the last one was seen to be, so one round may appear twice.
        process = start(path, "all", written + 1, 10**6)
        for _ in range(chance.randint(1, 6)):
            written = int(process.stdout.readline())
        process.kill()
        process.wait()
        rest = process.stdout.read().split()
        written = int(rest[-1]) if rest else written
        assert whole(path)
        judged = {judged for judged, _ in totals(path).values()}
        # Whole rounds; at most one more than was reported before the kill.
        assert judged in ({24 * (written + 1)}, {24 * (written + 2)})
    process = start(path, "all", written + 1, written + 30)
    process.communicate()
    assert set(totals(path).values()) == {
        (24 * (written + 30), 0),
        (24 * (written + 30), 2 * (written + 30)),
    }
    assert EvidenceLedger(path).state("mal") is State.HARD


@pytest.mark.slow
def test_two_writers_lose_and_duplicate_nothing(tmp_path):
    path, rounds = tmp_path / "run.sqlite", 150
    # Two ranks with half of each round.
    parts = [start(path, part, 0, rounds) for part in ("even", "odd")]
    assert [p.wait(timeout=300) for p in parts] == [0, 0]
    for process in parts:
        assert "degraded" not in process.stdout.read()
    assert whole(path)
    assert totals(path) == {n: (24 * rounds, 2 * rounds * (n == "mal")) for n in NODES}
    assert rounds * 96 == 14_400  # records


def test_held_lock_does_not_stop_training(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("grpo_guard.nodes.patience.WAIT", 0.05)
    ledger = EvidenceLedger(tmp_path / "run.sqlite")
    guard = Guard(AllOf(ExclusionVerifier(ledger), Yes()), ledger=ledger)
    play(ledger, 0, 25)
    other = sqlite3.connect(tmp_path / "run.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with caplog.at_level(logging.WARNING, logger="grpo_guard"):
        for t in (25, 26, 27):
            review = guard.review(played(t)[0])
    assert "locked" in ledger.degraded
    assert sum("is locked by another process" in r.message for r in caplog.records) == 1
    # All keep their last state: what could not be written is kept in memory.
    by_node = dict(zip([c.node for c in played(0)[0]], review.verdicts, strict=True))
    assert by_node["mal"].rejected
    assert by_node["ann"].accepted
    ledger.lost += 1  # as when more is waiting than is kept
    strict = dict(
        zip([c.node for c in played(0)[0]], guard.verifier.verify(played(28)[0]), strict=True)
    )
    assert strict["mal"].rejected
    assert strict["ann"].cause is Cause.FAULT
    assert "degraded" in strict["ann"].reason
    lenient = ExclusionVerifier(ledger, last_known=True).verify(played(28)[0])
    assert [v.accepted for v in lenient] == [True] * 72 + [False] * 24
    ledger.lost -= 1
    other.execute("ROLLBACK")
    guard.review(played(28)[0])
    assert ledger.degraded is None
    assert {judged for judged, _ in totals(ledger.path).values()} == {29 * 24}


def test_pending_records_are_bounded_and_their_loss_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr("grpo_guard.nodes.patience.WAIT", 0.0)
    ledger = EvidenceLedger(tmp_path / "run.sqlite")
    other = sqlite3.connect(tmp_path / "run.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for t in range(MAX_WAITING + 10):
        ledger.record(*played(t, prompts=1, each=1))
    assert len(ledger._waiting) == MAX_WAITING
    other.execute("ROLLBACK")
    ledger.record(*played(MAX_WAITING + 10, prompts=1, each=1))
    assert ledger.lost == 10 + (len(ledger._waiting) > 0)
    assert {judged for judged, _ in totals(ledger.path).values()} == {MAX_WAITING + 1}
    assert other.execute("SELECT value FROM meta WHERE key = 'lost'").fetchone() == (10,)


FILL = """
import resource, signal, sys
from tests.nodes.swarm_ledger import played
from grpo_guard.nodes.ledger import EvidenceLedger
from grpo_guard.nodes.exclusion_verifier import ExclusionVerifier
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
ledger = EvidenceLedger(sys.argv[1])
ledger.record(*played(0))
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
for t in range(1, 60):
    ledger.record(*played(t))
    if ledger.degraded:
        break
verdicts = ExclusionVerifier(ledger).verify(played(t)[0])
print(t, ledger.degraded, {v.cause.value for v in verdicts}, flush=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
ledger.record(*played(t + 1))
print(ledger.degraded, {s.judged for s in ledger.standings()} == {24 * (t + 2)})
"""


def test_file_that_cannot_grow(tmp_path):
    command = [sys.executable, "-c", FILL, str(tmp_path / "run.sqlite")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment())
    full, healed = done.stdout.splitlines()
    assert "full" in full or "I/O" in full
    assert "{'fault'}" in full
    assert healed == "None True"
    assert whole(tmp_path / "run.sqlite")


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a small file system needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_disk_that_is_full_for_a_while(small_disk, caplog):
    ledger = EvidenceLedger(small_disk / "run.sqlite")
    play(ledger, 0, 10)
    ballast = small_disk / "ballast"
    fill(ballast)
    rounds = 10
    while ledger.degraded is None:
        play(ledger, rounds, rounds + 1)
        rounds += 1
        assert rounds < 200
    play(ledger, rounds, rounds + 5)
    assert "full" in ledger.degraded or "I/O" in ledger.degraded
    assert all(v.abstained for v in ExclusionVerifier(ledger).verify(played(0)[0][:1]))
    assert sum("cannot be written" in r.message for r in caplog.records) == 1
    ballast.unlink()
    play(ledger, rounds + 5, rounds + 6)
    assert ledger.degraded is None
    assert ledger.lost == 0
    assert {judged for judged, _ in totals(ledger.path).values()} == {24 * (rounds + 6)}
    assert whole(ledger.path)
    ledger.close()


def test_disk_that_is_full_from_the_start(small_disk):
    ballast = small_disk / "ballast"
    fill(ballast)
    ledger = EvidenceLedger(small_disk / "run.sqlite")
    play(ledger, 0, 3)
    assert ledger.degraded
    assert all(v.abstained for v in ExclusionVerifier(ledger).verify(played(0)[0][:1]))
    ballast.unlink()
    play(ledger, 3, 4)
    assert ledger.degraded is None
    assert {s.judged for s in ledger.standings()} == {96}
    ledger.close()


def test_ledger_overwritten_while_running(tmp_path):
    ledger = EvidenceLedger(tmp_path / "run.sqlite")
    play(ledger, 0, 2)
    for file in tmp_path.glob("run.sqlite*"):
        file.write_bytes(b"nonsense" * 1000)
    play(ledger, 2, 4)  # must not raise
    assert ledger.degraded
    [verdict] = ExclusionVerifier(ledger).verify(played(0)[0][:1])
    assert verdict.cause is Cause.FAULT
    with pytest.raises(LedgerError):
        ledger.standings()


def test_ledger_removed_while_running(tmp_path, caplog):
    ledger = EvidenceLedger(tmp_path / "run.sqlite")
    play(ledger, 0, 2)
    for file in tmp_path.glob("run.sqlite*"):
        file.unlink()
    play(ledger, 2, 4)
    assert "is gone" in caplog.text
    assert {s.judged for s in ledger.standings()} == {48}
