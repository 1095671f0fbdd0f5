"""An operator can release a node that was excluded by mistake."""

import pytest

from grpo_guard.nodes.ledger import EvidenceLedger
from grpo_guard.nodes.release import release
from grpo_guard.nodes.schema import LedgerError
from grpo_guard.nodes.standing import State
from tests.nodes.swarm_ledger import one_in, played


@pytest.fixture
def ledger(tmp_path):
    found = EvidenceLedger(tmp_path / "run.sqlite")
    for t in range(30):
        found.record(*played(t, {("mal", 1), ("mal", 9)}))
    yield found
    found.close()


def test_released_node_is_clear_and_its_past_is_ignored(ledger):
    assert ledger.state("mal") is State.HARD
    release(ledger.path, "mal")
    assert ledger.state("mal") is State.CLEAR
    for t in range(30, 40):
        ledger.record(*played(t, {("mal", 3)} if t == 35 else ()))
        assert ledger.state("mal") is State.CLEAR
    assert ledger.standing("mal").rejected == 61


def test_released_node_that_continues_is_found_again(ledger):
    release(ledger.path, "mal")
    for t in range(30, 60):
        ledger.record(*played(t, {("mal", 1), ("mal", 9)}))
    assert ledger.state("mal") is State.HARD


def test_release_is_visible_in_another_process(ledger):
    release(ledger.path, "mal")
    again = EvidenceLedger(ledger.path)
    for t in range(30, 40):
        again.record(*played(t, one_in(24)))
    assert again.state("mal") is State.CLEAR
    again.close()


def test_release_does_not_affect_other_nodes(ledger):
    for t in range(30, 60):
        ledger.record(*played(t, {("ann", 1), ("ann", 9)}))
    assert ledger.state("ann") is State.HARD
    release(ledger.path, "mal")
    ledger.record(*played(60, {("ann", 1)}))
    assert ledger.state("ann") is State.HARD


def test_unknown_node_cannot_be_released(ledger, tmp_path):
    with pytest.raises(LedgerError, match="expected a node of the ledger, got 'who'"):
        release(ledger.path, "who")
    with pytest.raises(LedgerError, match="no such file"):
        release(tmp_path / "none.sqlite", "mal")
    assert not (tmp_path / "none.sqlite").exists()
