"""The identity gate inside a guard, and what it remembers: ledger, checkpoints, processes."""

import json
import pickle
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_guard import Completion, presets
from grpo_guard.core.verdict import BARRING_CAUSES, Cause, accept, reject
from grpo_guard.guard import Guard
from grpo_guard.guard.policy import Policy
from grpo_guard.guard.references import References
from grpo_guard.nodes.identity.envelope import signed
from grpo_guard.nodes.identity.gate import Identity
from grpo_guard.nodes.identity.keys import SigningKey
from grpo_guard.nodes.identity.ring import KeyRing
from grpo_guard.nodes.intake import intake
from grpo_guard.nodes.ledger import EvidenceLedger
from grpo_guard.nodes.standing import State
from grpo_guard.nodes.store import NodeStore
from tests.core.identity_cases import (
    ALICE,
    BOB,
    EVE,
    RUN,
    Choosy,
    by_alice,
    identity,
    kinds,
    work,
)


def test_refused_completions_do_not_reach_the_verifier() -> None:
    choosy = Choosy()
    review = Guard(choosy, identity=identity()).review([work("poison"), by_alice(), work()])
    assert [v.cause for v in review.verdicts] == [
        Cause.UNAUTHENTICATED,
        Cause.JUDGED,
        Cause.UNAUTHENTICATED,
    ]
    assert [c.node for c in choosy.seen] == [ALICE.public]
    named = {name.split("/")[2] for name in review.metrics if name.startswith("guard/node/")}
    assert len(named) == 1


def test_batch_of_refused_completions_is_not_called_one_without_names(
    caplog: pytest.LogCaptureFixture,
) -> None:
    guard = presets.different_weights()
    guard.identity = identity()
    guard.verify([work("2 + 2 = 4."), work("5")])
    assert "of this batch has" not in caplog.text
    guard.identity = None
    guard.verify([Completion("2 + 2?", "4")])  # and the warning is still to come
    assert "of this batch has 'node'" in caplog.text


def test_identity_prevents_exclusion_by_impersonation(
    tmp_path: Path,
) -> None:
    """Four nodes and an attacker that sends poison as alice in every round."""
    keys = [ALICE, BOB, *(SigningKey(bytes([9, i]) * 16) for i in range(2))]
    names = ["alice", "bob", "carol", "dave"]
    known = KeyRing({name: key.public for name, key in zip(names, keys, strict=True)})
    stands = {}
    for guarded in (False, True):
        ledger = EvidenceLedger(tmp_path / f"{guarded}.sqlite")
        gate = Identity(known, run=RUN) if guarded else None
        guard = Guard(Choosy(), ledger=ledger, identity=gate)
        for round in range(12):
            batch = [
                signed(work(f"{round} {slot}", round=round, slot=slot, node=name), key, run=RUN)
                for name, key in zip(names, keys, strict=True)
                for slot in range(8)
            ]
            forged = [replace(c, text="poison", slot=c.slot) for c in batch[:8]]
            guard.review([*forged, *batch])
        stands[guarded] = [ledger.state(n) for n in (*names, *(k.public for k in keys))]
    assert stands[False][0] is State.HARD
    assert set(stands[True]) == {State.CLEAR}


def test_node_that_signs_poison_is_excluded(tmp_path: Path) -> None:
    """Negative control: identity does not protect an attacker."""
    keys = {f"n{i}": SigningKey(bytes([7, i]) * 16) for i in range(4)}
    ledger = EvidenceLedger(tmp_path / "ledger.sqlite")
    gate = Identity(KeyRing({n: k.public for n, k in keys.items()}), run=RUN)
    guard = Guard(Choosy(), ledger=ledger, identity=gate)
    for round in range(12):
        guard.review(
            [
                signed(
                    work("poison" if name == "n3" else "72", round=round, slot=slot, node=name),
                    key,
                    run=RUN,
                )
                for name, key in keys.items()
                for slot in range(8)
            ]
        )
    states = {name: ledger.state(key.public) for name, key in keys.items()}
    assert states["n3"] is State.HARD
    assert all(state is State.CLEAR for name, state in states.items() if name != "n3")


@pytest.mark.parametrize("cause", sorted(BARRING_CAUSES))
def test_ledger_ignores_outcomes_that_others_can_cause(tmp_path: Path, cause: Cause) -> None:
    """Refused, late, or with a reference that someone else forged: no evidence against a name."""
    ledger = EvidenceLedger(tmp_path / "ledger.sqlite")
    for round in range(12):
        batch = [work(str(i), node=n, round=round) for n in "abcd" for i in range(8)]
        said = {"a": reject("v"), "b": reject("v", cause)}
        ledger.record(batch, [said.get(str(c.node), accept("v")) for c in batch])
    assert ledger.state("a") is State.HARD  # the negative control
    assert ledger.state("b") is State.CLEAR
    standing = ledger.standing("b")
    assert standing is None or standing.rejected == 0


def test_state_round_trips_through_a_checkpoint() -> None:
    guard = Guard(Choosy(), identity=Identity(KeyRing(pin=True), run=RUN))
    guard.review([by_alice()])
    state = json.loads(json.dumps(guard.state_dict()))
    resumed = Guard(Choosy(), identity=Identity(KeyRing(pin=True), run=RUN))
    resumed.load_state_dict(state)
    (verdict,) = resumed.review([by_alice()]).verdicts
    assert verdict.findings[0].kind == "replayed"
    with pytest.raises(ValueError, match="identity: expected a state of its own"):
        Identity(KeyRing(), run=RUN).load_state_dict({"pinned": {}, "filled": {"k": 1}})


def test_old_copy_under_new_groups_counts_once() -> None:
    # A restarted process does not know it, and groups are not signed.
    entries = []
    for group in (None, 1, "b"):
        batch, _ = identity().admit([replace(by_alice(), group=group)])
        entries += intake(batch, [reject("rules", message="poison")]).entries
    assert len({entry.key for entry in entries}) == 1
    assert {entry.node for entry in entries} == {ALICE.public.encode()}


def test_checkpoint_covers_all_processes_of_a_store(tmp_path: Path) -> None:
    one, other = (Identity(KeyRing(pin=True), run=RUN, store=NodeStore(tmp_path)) for _ in range(2))
    empty = one.state_dict()
    other.admit([signed(work(node="eve"), EVE, run=RUN)])
    assert one.state_dict()["pinned"] == {"eve": EVE.public}
    one.load_state_dict(empty)
    for gate in (one, other):
        gate.admit([])
        assert gate.ring.pinned == {}


def test_checkpoint_can_be_written_during_admission() -> None:
    gate, failed = identity(), list[Exception]()
    work_of_alice = [by_alice(str(slot), slot=slot) for slot in range(600)]
    done = threading.Event()

    def save() -> None:
        while not done.is_set():
            try:
                gate.state_dict()
            except Exception as error:
                failed.append(error)
                return

    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        saving = threading.Thread(target=save)
        saving.start()
        for start in range(0, len(work_of_alice), 8):
            gate.admit(work_of_alice[start : start + 8])
        done.set()
        saving.join()
    finally:
        sys.setswitchinterval(switching)
    assert failed == []


def test_unanswered_completion_may_be_sent_again() -> None:
    gate, left = identity(), threading.Event()
    gate.given_up = lambda: left
    assert kinds(gate.admit([by_alice(), by_alice()])) == [None, "replayed"]
    left.set()
    gate.given_up = lambda: None
    assert kinds(gate.admit([by_alice(), by_alice()])) == [None, "replayed"]


def test_copy_in_another_process_shares_state() -> None:
    gate = identity()
    gate.admit([by_alice()])
    copied = pickle.loads(pickle.dumps(gate))
    assert kinds(copied.admit([by_alice(), by_alice(slot=1)])) == ["replayed", None]


@given(st.lists(st.sampled_from(["honest", "unsigned", "forged", "replay", "named"]), max_size=12))
def test_any_input_gets_one_answer_each_in_order(how: list[str]) -> None:
    makes = {
        "honest": lambda i: by_alice(slot=i),
        "unsigned": lambda i: work(slot=i),
        "forged": lambda i: replace(by_alice(slot=i), text="poison"),
        "replay": lambda i: by_alice(slot=100),
        "named": lambda i: signed(work(slot=i), EVE, run=RUN),
    }
    batch = [makes[kind](i) for i, kind in enumerate(how)]
    admission = identity().admit(batch)
    expected: list[str | None] = []
    for i, kind in enumerate(how):
        first = kind == "replay" and kind not in how[:i]
        known = {"unsigned": "unsigned", "forged": "forged", "named": "wrong_key"}
        expected.append(known.get(kind, None if kind == "honest" or first else "replayed"))
    assert kinds(admission) == expected
    assert [c.text for c in admission.batch] == [c.text for c in batch]


def test_identity_set_later_applies_to_derived_guards() -> None:
    guard = Guard(Choosy())
    wrapped = guard.with_policy(Policy("zero", "zero"))
    asking = guard.with_environment(lambda prompt, turns: "")
    guard.identity, guard.references = identity(), References({"What is 70 + 2?": "72"})
    for one in (guard, wrapped, asking):
        assert one.identity is guard.identity
        assert one.references is guard.references
        (verdict,) = one.judge([work()])[1]
        assert verdict.cause is Cause.UNAUTHENTICATED
