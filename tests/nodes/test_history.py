"""Many nodes: dropping old names never makes an honest one look worse."""

import random

import pytest

from grpo_guard.config import GuardConfig
from grpo_guard.nodes import evidence, history
from grpo_guard.nodes.bets import Tally
from grpo_guard.nodes.evidence import MAX_PEERS, Comparison
from grpo_guard.nodes.history import History
from grpo_guard.nodes.ledger import EvidenceLedger
from grpo_guard.nodes.store import NodeStore
from tests.nodes.plain_evidence import PlainComparison


def rounds(count, names, seed=0, often=0.5):
    chance = random.Random(seed)
    for _ in range(count):
        here = [f"n{k}" for k in range(names) if chance.random() < often]
        yield {n: Tally(8, b := int(chance.random() < 0.2), b) for n in here}


def test_peers_are_sampled_in_large_swarms_at_no_lower_threshold(monkeypatch):
    monkeypatch.setattr(history, "MOST_LOOKED_AT", 48)
    some, plain = Comparison(window=16, salt=b"s"), PlainComparison(window=16, salt=b"s")
    for tallies in rounds(30, 160):
        some.add(tallies)
        plain.add(tallies)
    found, exact = some.evidence(), plain.evidence()
    assert len(found) > 40
    for name, e in found.items():
        assert e.others >= exact[name].others
        assert 2 <= e.peers <= MAX_PEERS


def test_evidence_is_the_same_without_cached_accounts(monkeypatch):
    kept = Comparison(window=16, salt=b"s")
    monkeypatch.setattr(evidence, "MAX_ACCOUNTS", 0)
    without = Comparison(window=16, salt=b"s")
    compared = 0
    for tallies in rounds(40, 12, often=0.8):
        monkeypatch.setattr(evidence, "MAX_ACCOUNTS", 1024)
        kept.add(tallies)
        wanted = kept.evidence()
        monkeypatch.setattr(evidence, "MAX_ACCOUNTS", 0)
        without.add(tallies)
        found = without.evidence()
        for name in (n for n, t in tallies.items() if t.held):
            assert found[name] == wanted[name]  # identical to the bit
            compared += 1
        assert not any(found[n].rose for n, t in tallies.items() if not t.held)
    assert compared > 50


def test_names_that_left_take_no_memory_and_return_as_new():
    known = History(8, 33, b"")
    for t in range(100):
        if t >= 8:
            known.forget(t - 8)
        known.add(t, {f"{t} {k}": Tally(1, 1, 1) for k in range(50)})
    assert len(known._names) < 2 * 8 * 50
    assert known.rejected_names == 8 * 50
    assert known.tally("0 0", 0) == Tally(0, 0, 0)
    assert not known.is_rejected("0 0")


def test_counts_of_any_size_are_forgotten_with_their_rounds(monkeypatch):
    monkeypatch.setattr(history, "_MOST_TALLIES", 100)
    known = History(8, 33, b"")
    for t in range(60):
        if t >= 8:
            known.forget(t - 8)
        known.add(t, {f"n{k}": Tally(1 + t + k / 64, k % 2, k % 2) for k in range(40)})
        for number in range(max(0, t - 7), t + 1):
            assert known.tally("n3", number) == Tally(1 + number + 3 / 64, 1, 1)
    assert len(known._tallies) <= 9 * 40 + 1
    assert known.rejected_names == 20


def test_counts_beyond_two_bytes():
    known = History(8, 33, b"")
    many = {f"n{k}": Tally(1 + k / 128, 0, 0) for k in range(70_000)}
    known.add(0, many)
    assert all(known.tally(n, 0) == many[n] for n in ("n0", "n65534", "n65535", "n69999"))


@pytest.mark.parametrize("most", [0, 10_000_001, True])
def test_limit_of_names_is_checked(tmp_path, most):
    with pytest.raises(ValueError, match="max_nodes: expected 1 to 10,000,000"):
        EvidenceLedger(tmp_path / "run.sqlite", max_nodes=most)


def test_store_and_guard_file_set_the_limit_of_names(tmp_path):
    store = NodeStore(tmp_path, max_nodes=20_000)
    assert store.ledger().max_nodes == 20_000
    said = {
        "state": str(tmp_path),
        "ledger": {"max_nodes": 30_000},
        "verifier": {"type": "arithmetic"},
    }
    guard = GuardConfig.model_validate(said).build()
    assert guard.ledger.max_nodes == 30_000
    (_, arithmetic) = guard.verifier.members
    assert arithmetic.store.max_nodes == 30_000
