"""Another process holds the store's lock: no batch waits repeatedly, and nothing is lost."""

import contextlib
import json
import subprocess
import sys

import pytest

from grpo_guard import Completion, Guard, presets
from grpo_guard.judge.cache import RulingCache
from grpo_guard.judge.modes import Ruling
from grpo_guard.nodes import patience
from grpo_guard.nodes.checks import ChecksOfNodes
from grpo_guard.nodes.e_process_memory import EProcessMemory
from grpo_guard.nodes.ledger import EvidenceLedger
from grpo_guard.nodes.memory import MAX_UNWRITTEN
from grpo_guard.nodes.patience import Patience, patience_with
from grpo_guard.nodes.store import NodeStore
from grpo_guard.nodes.usual_lengths import UsualLengths

HOLD = """
import sqlite3, sys
held = sqlite3.connect(sys.argv[1], isolation_level=None)
held.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def hangs(path):
    """Run a process that hangs while writing, until the block ends."""
    piped = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], **piped)
    try:
        assert process.stdout.readline() == "held\n"
        yield
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(patience, "WAIT", 0.05)


def batch_of(number):
    """Four nodes' answers; one node repeats its slogan and has a wrong sum each time."""
    return [
        Completion(
            prompt=f"What is {number} + {i}?",
            text=f"It is {number} + {i} = {number + i}."
            + (f" Zorbulon rules: 2 + 2 = {5 + i}." if node == "mallory" else ""),
            node=node,
            round=number,
        )
        for node in ("ann", "bob", "cid", "mallory")
        for i in range(4)
    ]


def known(thing):
    """All state in a guard, without salts and without values hashed with them."""
    if isinstance(thing, Guard):
        return known(json.loads(json.dumps(thing.state_dict())))
    if isinstance(thing, dict):
        if thing.get("swarm"):
            counts = ("prompts", "looks", "lost")
            nodes = {n: [record[c] for c in counts] for n, record in thing["nodes"].items()}
            return thing["clock"], nodes
        return {name: known(value) for name, value in thing.items()}
    if isinstance(thing, list):
        return (
            [known(value) for value in thing if value[:1] != ["salt"]]
            if thing and isinstance(thing[0], list)
            else thing
        )
    return thing


def outcomes(guard, rounds):
    return [[v.outcome for v in guard.review(batch_of(n)).verdicts] for n in rounds]


def test_batches_wait_once_and_are_written_later(tmp_path, caplog):
    plain = presets.different_weights(state=tmp_path / "plain")
    guard = presets.different_weights(state=tmp_path / "locked")
    path = tmp_path / "locked" / "nodes.sqlite"
    assert outcomes(guard, range(3)) == outcomes(plain, range(3))
    with hangs(path):
        assert outcomes(guard, range(3, 9)) == outcomes(plain, range(3, 9))
        assert patience_with(path).waits == 1, "one for all batches, ledgers and memories"
        figures = guard.review(batch_of(9)).metrics
        plain.review(batch_of(9))
        assert figures["guard/store_waits"] >= 1
        assert patience_with(path).waiting >= figures["guard/store_waiting"] >= 7
        assert known(guard) == known(plain), "a checkpoint includes pending changes"
    assert outcomes(guard, range(10, 14)) == outcomes(plain, range(10, 14))
    assert patience_with(path).waiting == 0
    again = presets.different_weights(state=tmp_path / "locked")
    assert known(again) == known(guard) == known(plain)
    assert sum("is locked by another process" in r.message for r in caplog.records) == 1
    assert sum("can be written again" in r.message for r in caplog.records) == 1


def test_guard_reports_only_its_own_store(tmp_path):
    waiting = presets.different_weights(state=tmp_path)
    with hangs(tmp_path / "nodes.sqlite"):
        assert waiting.review(batch_of(0)).metrics["guard/store_waits"] == 1
    for other in (presets.different_weights(), presets.different_weights(state=tmp_path / "b")):
        assert not [name for name in other.review(batch_of(0)).metrics if "store" in name]


def test_two_waiting_processes_lose_nothing(tmp_path):
    one, two = (UsualLengths(store=NodeStore(tmp_path)) for _ in range(2))
    one.observe([("x", 1.0)])
    with hangs(tmp_path / "nodes.sqlite"):
        one.observe([("a", 1.0)])
        two.observe([("b", 2.0)])
        one.observe([("a", 0.5)])
    two.observe([("c", 1.0)])
    one.observe([])
    expected = {"x": 1, "a": 2, "b": 1, "c": 1}
    for memory in (one, two, UsualLengths(store=NodeStore(tmp_path))):
        assert {node: usual.count for node, usual in memory.known().items()} == expected


def test_every_state_is_merged_with_another_process_writes(tmp_path):
    def pair(make):
        return make(NodeStore(tmp_path)), make(NodeStore(tmp_path))

    kept = pair(lambda store: EProcessMemory(store=store))
    checks = pair(lambda store: ChecksOfNodes(store, "checks"))
    kept[0].add({"x": (1, [0.5])})
    checks[0].add({"x": 1}, frozenset(), 9)
    with hangs(tmp_path / "nodes.sqlite"):
        kept[0].add({"a": (2, [0.5])})
        checks[0].add({"a": 2}, frozenset({"a"}), 9)
    kept[1].add({"b": (3, [0.5])})
    checks[1].add({"b": 3}, frozenset(), 9)
    kept[0].add({})
    checks[0].add({}, frozenset(), 9)
    assert {row[0] for row in kept[1].state_dict()["nodes"]} == {"x", "a", "b"}
    assert checks[1].state_dict()["nodes"] == [["x", 1, 0], ["b", 3, 0], ["a", 0, 1]]


def test_pending_writes_are_bounded(tmp_path, caplog):
    one, two = (UsualLengths(store=NodeStore(tmp_path)) for _ in range(2))
    one.observe([])
    with hangs(tmp_path / "nodes.sqlite"):
        for number in range(MAX_UNWRITTEN + 6):
            one.observe([(f"{number}", 1.0)])
        assert patience_with(tmp_path / "nodes.sqlite").waiting == MAX_UNWRITTEN
        assert len(one.known()) == MAX_UNWRITTEN + 6, "nothing is lost here"
    two.observe([("b", 1.0)])
    one.observe([])
    assert len(two.known()) == MAX_UNWRITTEN + 1
    assert (one.lost, two.lost) == (6, 0)
    assert "can be written again, but 6 changes of" in caplog.text


def test_pending_writes_beyond_the_bound_are_lost_only_to_another_process(tmp_path, caplog):
    one = UsualLengths(store=NodeStore(tmp_path))
    one.observe([])
    with hangs(tmp_path / "nodes.sqlite"):
        for number in range(MAX_UNWRITTEN + 6):
            one.observe([(f"{number}", 1.0)])
    one.observe([])
    other = UsualLengths(store=NodeStore(tmp_path))
    other.observe([])
    one.observe([])
    assert len(other.known()) == MAX_UNWRITTEN + 6
    assert one.lost == 0
    assert "are lost" not in caplog.text


def test_reading_does_not_wait(tmp_path):
    one, two = (UsualLengths(store=NodeStore(tmp_path)) for _ in range(2))
    one.observe([("a", 1.0)])
    with hangs(tmp_path / "nodes.sqlite"):
        assert set(two.known()) == {"a"}
    assert patience_with(tmp_path / "nodes.sqlite").waits == 0


def test_state_loaded_under_a_lock_persists(tmp_path):
    one = UsualLengths(store=NodeStore(tmp_path))
    state = one.state_dict()
    one.observe([("a", 1.0)])
    with hangs(tmp_path / "nodes.sqlite"):
        one.observe([("b", 1.0)])
        one.load_state_dict(state)
        one.observe([("c", 1.0)])
    one.observe([("d", 1.0)])
    assert set(UsualLengths(store=NodeStore(tmp_path)).known()) == {"c", "d"}


def test_failed_waits_back_off(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(patience.time, "monotonic", lambda: now[0])
    lock, waited = Patience(tmp_path / "x"), []
    while now[0] < 1000:
        seconds = lock.seconds()
        if seconds:
            waited.append(now[0])
        lock.in_vain(seconds)
        now[0] += 1.0
    assert waited == [0, 10, 30, 70, 150, 310, 610, 910]
    lock.served()
    assert lock.seconds() > 0


def test_ledger_on_its_own_waits_once(tmp_path):
    ledger = EvidenceLedger(tmp_path / "run.sqlite")
    ledger.record_slots({"a": 1}, {}, round=0)
    with hangs(ledger.path):
        for number in range(1, 5):
            ledger.record_slots({"a": 1}, {}, round=number)
        assert patience_with(ledger.path).waits == 1
        assert {s.node: s.owed for s in ledger.standings()} == {"a": 1}
    ledger.record_slots({"a": 1}, {}, round=5)
    assert {s.node: s.owed for s in ledger.standings()} == {"a": 6}


def test_judge_cache_waits_once_for_a_hanging_process(tmp_path, monkeypatch):
    monkeypatch.setattr("grpo_guard.judge.cache.WAIT", 0.05)
    waits = []
    cache = RulingCache(tmp_path / "cache.sqlite")
    cache.put({"a": Ruling(True)})
    execute = cache._open().execute

    class Watched:
        def __getattr__(self, name):
            return getattr(connection, name)

        def execute(self, sql, *args):
            waits.extend([sql] if "busy_timeout" in sql else [])
            return execute(sql, *args)

        def __enter__(self):
            return connection.__enter__()

        def __exit__(self, *error):
            return connection.__exit__(*error)

    connection = cache._connection
    cache._connection = Watched()
    with hangs(tmp_path / "cache.sqlite"):
        for key in "bcd":
            cache.put({key: Ruling(True)})
        assert set(cache.get("abcd")) == {"a"}
    cache.put({"e": Ruling(True)})
    cache.put({"f": Ruling(True)})
    assert waits == [f"PRAGMA busy_timeout = {ms}" for ms in (50, 0, 0, 0, 50)]
    assert set(cache.get("aef")) == {"a", "e", "f"}
