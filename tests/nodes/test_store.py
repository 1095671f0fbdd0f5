"""One store for all state: across restarts, across processes, in checkpoints, corrupted."""

import json
import multiprocessing
import os
import pickle
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_guard import ArithmeticVerifier, Completion, Guard, Outcome, presets
from grpo_guard.content.length.compare import Member
from grpo_guard.content.recurrence.verifier import RecurrenceVerifier
from grpo_guard.logprob.replay.slots import SlotBook
from grpo_guard.nodes.lengths import NodeMemory
from grpo_guard.nodes.standing import State
from grpo_guard.nodes.store import NodeStore
from grpo_guard.nodes.usual_lengths import Paid, Usual, UsualLengths

SLOGAN = "Zorbulon rules the nebula."


def round_of(number, *, poisoned="mallory", nodes=("ann", "bob", "cid")):
    """A round in which one node repeats the slogan and no other node has a phrase."""
    return [
        Completion(
            prompt=f"What is {number} + {i}?",
            text=f"It is {number + i}." + (f" {SLOGAN}" if node == poisoned else ""),
            node=node,
            round=number,
        )
        for node in (*nodes, poisoned)
        for i in range(4)
    ]


def rejected(verifier, number):
    batch = round_of(number)
    verdicts = verifier.verify(batch)
    return {c.node for c, v in zip(batch, verdicts, strict=True) if v.outcome is Outcome.REJECT}


def test_recurrence_continues_after_a_restart(tmp_path):
    before = RecurrenceVerifier(store=NodeStore(tmp_path))
    for number in range(6):
        rejected(before, number)
    after = RecurrenceVerifier(store=NodeStore(tmp_path))
    assert after.convictions() == {}, "loaded with the first batch"
    assert rejected(after, 6) == {"mallory"}


def test_two_verifiers_share_what_they_see(tmp_path):
    """Workers of one trainer that each see every other round, compared with one that sees all."""
    workers = [RecurrenceVerifier(store=NodeStore(tmp_path)) for _ in range(2)]
    whole, apart = RecurrenceVerifier(), RecurrenceVerifier()
    found = dict.fromkeys(("shared", "whole", "apart"))
    for number in range(16):
        seen = {"shared": rejected(workers[number % 2], number), "whole": rejected(whole, number)}
        if number % 2:
            seen["apart"] = rejected(apart, number)
        for name, nodes in seen.items():
            found[name] = number if found[name] is None and nodes else found[name]
    assert found["shared"] == found["whole"] < found["apart"]


def test_second_state_of_a_kind_has_its_own_table(tmp_path):
    def pair():
        store = NodeStore(tmp_path)
        return RecurrenceVerifier(store=store), RecurrenceVerifier(store=store, alpha=0.01)

    for verifier in pair():
        rejected(verifier, 0)
    with sqlite3.connect(tmp_path / "nodes.sqlite") as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM memories ORDER BY name")]
    assert names == ["recurrence", "recurrence_2"]


def saved(folder):
    with sqlite3.connect(folder / "nodes.sqlite") as connection:
        return dict(connection.execute("SELECT name, state FROM memories"))


def test_guards_of_both_kinds_of_swarm_remember_in_one_folder(tmp_path, caplog):
    """Back and forth, with a restart each time, and from what 0.3 saved as "recurrence"."""
    kinds = ("homogeneous", "heterogeneous")
    for number in range(12):
        if number == 6:
            with sqlite3.connect(tmp_path / "nodes.sqlite") as connection:
                connection.execute("UPDATE memories SET name = 'tmp' WHERE name = 'recurrence'")
                connection.execute("UPDATE memories SET name = 'recurrence' WHERE name != 'tmp'")
            found = rejected(RecurrenceVerifier(swarm=kinds[0], store=NodeStore(tmp_path)), number)
            assert found == {"mallory"}
            with sqlite3.connect(tmp_path / "nodes.sqlite") as connection:
                connection.execute("DELETE FROM memories WHERE name = 'recurrence'")
                connection.execute("UPDATE memories SET name = 'recurrence' WHERE name = 'tmp'")
        for kind in kinds:
            found = rejected(RecurrenceVerifier(swarm=kind, store=NodeStore(tmp_path)), number)
    assert found == {"mallory"}
    assert saved(tmp_path).keys() == {"recurrence", "recurrence_homogeneous"}
    assert not caplog.records


def test_what_a_guard_cannot_read_is_kept(tmp_path, caplog):
    rejected(RecurrenceVerifier(store=NodeStore(tmp_path)), 0)
    before = saved(tmp_path)["recurrence"]
    for number in range(3):
        rejected(RecurrenceVerifier(store=NodeStore(tmp_path), max_nodes=2), number)
    assert saved(tmp_path)["recurrence_unread_1"] == before
    assert "recurrence (4 nodes, but max_nodes is 2); it is kept as recurrence_unr" in caplog.text
    assert len(saved(tmp_path)) == 2


def test_unreadable_state_is_reported_once_and_stops_nothing(tmp_path, caplog):
    verifier = RecurrenceVerifier(store=NodeStore(tmp_path))
    rejected(verifier, 0)
    with sqlite3.connect(tmp_path / "nodes.sqlite") as connection:
        connection.execute("UPDATE memories SET state = '{\"swarm\": 3}', version = 9")
    for number in range(1, 8):
        found = rejected(verifier, number)
    assert found == {"mallory"}, "state of this process"
    assert sum("cannot use what is saved as" in r.message for r in caplog.records) == 1


def test_folder_that_may_not_be_written_is_refused_at_once(tmp_path, monkeypatch):
    """Rights as such do not stop the superuser, who may run these tests."""
    (tmp_path / "st").mkdir(mode=0o500)

    def allowed(path, mode):
        return not mode & os.W_OK or bool(Path(path).stat().st_mode & 0o200)

    monkeypatch.setattr("os.access", allowed)
    with pytest.raises(ValueError, match="state: expected a folder that this process may read"):
        presets.different_weights(state=tmp_path / "st")


def test_path_that_is_not_a_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="state: expected a folder that exists or can be made"):
        NodeStore(tmp_path / "file")


def test_copy_in_another_process_uses_the_same_file(tmp_path):
    verifier = RecurrenceVerifier(store=NodeStore(tmp_path))
    for number in range(6):
        rejected(verifier, number)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        copy = pickle.loads(pickle.dumps(verifier))
        assert pool.apply(rejected, (copy, 6)) == {"mallory"}
    assert rejected(verifier, 7) == {"mallory"}


def long_round(number):
    return [
        [Member(0, 400, "long", 1.0), Member(1, 100, "a", 1.0), Member(2, 90 + number, "b", 1.0)]
    ]


def test_length_records_are_shared_and_saved(tmp_path):
    workers = [NodeMemory(store=NodeStore(tmp_path)) for _ in range(2)]
    whole = NodeMemory()
    for number in range(40):
        workers[number % 2].observe(long_round(number))
        whole.observe(long_round(number))
    workers[0].observe([])
    assert workers[0].convicted() == whole.convicted() != {}
    restored = NodeMemory()
    restored.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    assert restored.state_dict() == whole.state_dict()


@pytest.mark.parametrize(
    "change",
    [
        {"format": 7},
        {"nodes": [1]},
        {"nodes": [f"n{i}" for i in range(33)]},
        {"wealth": [["a", "b", 0.0]]},
        {"wealth": [["a", "b", 1e9, 0.0, 0.0]]},
        {"wealth": [["a", "b", float("nan"), 0.0, 0.0]]},
        {"wealth": [["a", "stranger", 0.0, 0.0, 0.0]]},
        {"wealth": 3},
    ],
)
def test_malformed_length_records_are_refused_entirely(change):
    memory = NodeMemory()
    memory.observe(long_round(0))
    before = memory.state_dict()
    with pytest.raises(ValueError, match=r"NodeMemory: expected what state_dict\(\) returned"):
        memory.load_state_dict(before | change)
    assert memory.state_dict() == before


def reviewed(guard: Guard, rounds):
    """Outcomes by round; mallory imports her own library, for which she is rejected as well."""
    mine = "\n```python\nimport mallorylib\n\nmallorylib.run()\n```"
    batches = [
        [replace(c, text=c.text + mine) if c.node == "mallory" else c for c in round_of(n)]
        for n in rounds
    ]
    return [[v.outcome for v in guard.review(batch).verdicts] for batch in batches]


def test_checkpoint_resumes_a_guard(tmp_path):
    guard = presets.different_weights(state=tmp_path / "first")
    reviewed(guard, range(12))
    state = json.loads(json.dumps(guard.state_dict()))
    other = presets.different_weights(state=tmp_path / "second")
    reviewed(other, [50])  # replaces what it knew
    other.load_state_dict(state)
    assert other.state_dict()["memories"].keys() == state["memories"].keys()
    assert reviewed(other, range(12, 20)) == reviewed(guard, range(12, 20))
    ledger, restored = guard.ledger, other.ledger
    assert ledger.standings() == restored.standings()
    assert ledger.state("mallory") is State.HARD, "otherwise the test proves nothing"


def test_guard_with_in_memory_state_is_saved_too():
    guard, other = presets.different_weights(), presets.different_weights()
    reviewed(guard, range(12))
    other.load_state_dict(guard.state_dict())
    assert reviewed(other, range(12, 16)) == reviewed(guard, range(12, 16))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"format": 2},
            "expected what state_dict.. returned, got ValueError: format 2, but 1 is expected",
        ),
        ({"memories": {}}, "state: expected memories ledger, .*is it of a guard with other"),
        ({"memories": 3}, "state: expected memories"),
    ],
)
def test_state_of_another_guard_is_refused(change, message):
    guard = presets.different_weights()
    with pytest.raises(ValueError, match=message):
        guard.load_state_dict(guard.state_dict() | change)


@pytest.mark.parametrize(
    ("table", "rows"),
    [
        ("nodes", [["x"]]),
        ("nodes", [[1, "zz", 0, 0, 0, 0, 0, 0, 0]]),
        ("meta", [["closed", True]]),
        ("meta", [["closed", 2**63]]),
        ("rounds", [[0, 1, 1, float("nan"), 0]]),
        ("cells", "abc"),
        ("meta", [["closed", 0], ["closed", 1]]),
        ("phrases", None),
    ],
)
def test_ledger_refuses_malformed_rows(table, rows):
    ledger = presets.different_weights().ledger
    before = ledger.state_dict()
    broken = before | {"tables": before["tables"] | {table: rows}}
    with pytest.raises(ValueError, match=r"ledger: expected what state_dict\(\) returned"):
        ledger.load_state_dict(broken)
    assert ledger.state_dict() == before


@pytest.mark.parametrize(
    "damage",
    [
        lambda t: t.update(meta=[row for row in t["meta"] if row[0] != "closed"]),
        lambda t: t.update(clock=[*t["clock"], [2**60, None]]),
        lambda t: t["rounds"][0].__setitem__(2, -5),
        lambda t: t["rounds"][0].__setitem__(4, 10**9),
        lambda t: t["marks"][0].__setitem__(4, "odd"),
        lambda t: t["marks"][0].__setitem__(5, 9.0),
        lambda t: t["marks"][0].__setitem__(2, 10**400),
    ],
)
def test_ledger_refuses_rows_that_would_degrade_it(damage):
    guard = presets.different_weights()
    reviewed(guard, range(6))
    before = guard.ledger.state_dict()
    broken = json.loads(json.dumps(before))
    damage(broken["tables"])
    with pytest.raises(ValueError, match=r"ledger: expected what state_dict\(\) returned"):
        guard.ledger.load_state_dict(broken)
    assert guard.ledger.state_dict() == before


def test_loaded_state_applies_to_all_processes(tmp_path):
    """A rollback: what was learnt after the checkpoint must not return from the file."""
    first = RecurrenceVerifier(store=NodeStore(tmp_path))
    rejected(first, 0)
    state = first.state_dict()
    for number in range(1, 8):
        rejected(first, number)
    resumed = RecurrenceVerifier(store=NodeStore(tmp_path))
    assert resumed.state_dict()["clock"] == first.state_dict()["clock"], "it reads the file first"
    resumed.load_state_dict(state)
    clock = state["clock"] + len(round_of(8))
    rejected(resumed, 8)
    assert resumed.state_dict()["clock"] == first.state_dict()["clock"] == clock


def test_restored_file_is_read_again(tmp_path):
    one = RecurrenceVerifier(store=NodeStore(tmp_path))
    rejected(one, 0)
    for path in tmp_path.glob("nodes.sqlite*"):
        path.unlink()
    other = RecurrenceVerifier(store=NodeStore(tmp_path))
    rejected(other, 1)
    assert one.state_dict() == other.state_dict()


def test_round_begun_while_the_file_was_busy_is_kept(tmp_path, monkeypatch):
    """Otherwise the honest work of that round would be rejected as belonging to another round."""
    monkeypatch.setattr("grpo_guard.nodes.patience.WAIT", 0.2)
    here, there = (SlotBook(2, store=NodeStore(tmp_path)) for _ in range(2))
    there.begin_round(4)
    busy = sqlite3.connect(tmp_path / "nodes.sqlite", isolation_level=None)
    busy.execute("BEGIN IMMEDIATE")
    here.begin_round(5)
    busy.execute("ROLLBACK")
    busy.close()
    with here.held(int):
        pass
    for book in (here, there):
        with book.fresh():
            assert book.round == 5


@pytest.mark.parametrize("name", ["my-arithmetic", "Ünsum", "2nd", "-", "a" * 90])
def test_any_verifier_name_is_valid_in_a_store(tmp_path, name):
    kind = type("Mine", (ArithmeticVerifier,), {"name": name})
    for store in (None, NodeStore(tmp_path)):
        verdicts = kind(store=store).verify(round_of(0))
        assert all(verdict.accepted for verdict in verdicts)


def test_names_that_look_like_a_second_instance_are_distinguished(tmp_path):
    store = NodeStore(tmp_path)
    assert len({store.claim(name) for name in ("x", "x_2", "x", "x-2", "x")}) == 5


def test_usual_lengths_are_shared_and_saved(tmp_path):
    one, two = (UsualLengths(store=NodeStore(tmp_path)) for _ in range(2))
    one.observe([("a", 1.0), ("b", -5.0)])
    two.observe([("a", 2.0), ("a", float("inf"))])
    assert one.known() == two.known()
    usual = one.known()["a"]
    assert (usual.count, usual.total) == (3, 6.0)
    assert usual.excess == pytest.approx(6 / 5)
    assert one.known()["b"].excess == 0
    paid = [[Paid.of(node, 1.0, 30 if node == "a" else 10, Usual()) for node in "abc"]]
    for _ in range(30):
        one.observe_paid(paid)
    assert one.longer_when_paid() == two.longer_when_paid() == {"a"}
    restored = UsualLengths()
    restored.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert restored.known() == one.known()
    assert restored.longer_when_paid() == {"a"}
    for bad in ([["a", 1, 99.0, 1.0]], [["a", -1, 0, 0]], [["a", 1, float("nan"), 0]], [[1]], 3):
        with pytest.raises(ValueError, match=r"UsualLengths: expected what state_dict\(\)"):
            restored.load_state_dict({"format": 1, "nodes": bad})
    assert restored.known() == one.known()
