"""Keys that are pinned to names at first use: what they hold, and what an agreed key changes."""

from dataclasses import replace
from pathlib import Path

from grpo_guard.nodes.identity.envelope import signed
from grpo_guard.nodes.identity.gate import Identity
from grpo_guard.nodes.identity.keys import SigningKey
from grpo_guard.nodes.identity.ring import KeyRing
from grpo_guard.nodes.store import NodeStore
from tests.core.identity_cases import (
    ALICE,
    EVE,
    RUN,
    by_alice,
    kinds,
    only,
    ring,
    work,
)


def test_key_is_pinned_by_its_first_valid_signature() -> None:
    gate = Identity(KeyRing(pin=True), run=RUN)
    assert only(gate.admit([replace(by_alice(), text="not hers")])) == "forged"
    assert gate.ring.pinned == {}
    assert only(gate.admit([by_alice()])) is None
    assert gate.ring.pinned == {"alice": ALICE.public}
    assert only(gate.admit([signed(work(slot=1), EVE, run=RUN)])) == "wrong_key"
    renamed = signed(work(node="eve", slot=1), ALICE, run=RUN)
    assert only(gate.admit([renamed])) == "wrong_key"


def test_name_equal_to_a_key_cannot_be_pinned_by_another() -> None:
    gate = Identity(KeyRing(pin=True), run=RUN)
    assert only(gate.admit([signed(work(node=ALICE.public), EVE, run=RUN)])) == "wrong_key"
    assert only(gate.admit([signed(work(node=None), ALICE, run=RUN)])) is None


def test_endless_first_use_keys_are_bounded() -> None:
    """Agreed keys keep their slots, memory stays bounded, and the first keys seen stay."""
    gate = Identity(ring(pin=True, most_pinned=3), run=RUN)
    flood = [signed(work(node=f"n{i}"), SigningKey(bytes([9, i]) * 16), run=RUN) for i in range(6)]
    assert kinds(gate.admit(flood)) == [None] * 3 + ["unknown_key"] * 3
    assert only(gate.admit([by_alice()])) is None
    assert (
        only(gate.admit([signed(work(node="n0", slot=1), SigningKey(bytes([9, 0]) * 16), run=RUN)]))
        is None
    )
    assert len(gate.ring.pinned) == 3


def test_pinned_keys_outlive_the_process_in_the_store(tmp_path: Path) -> None:
    first = Identity(KeyRing(pin=True), run=RUN, store=NodeStore(tmp_path))
    assert only(first.admit([by_alice()])) is None
    again = Identity(KeyRing(pin=True), run=RUN, store=NodeStore(tmp_path))
    assert only(again.admit([signed(work("poison"), EVE, run=RUN)])) == "wrong_key"


def test_agreed_key_replaces_a_pinned_key(tmp_path: Path) -> None:
    first = Identity(KeyRing(pin=True), run=RUN, store=NodeStore(tmp_path))
    first.admit([signed(work(), EVE, run=RUN)])  # pinned as alice before
    again = Identity(ring(pin=True), run=RUN, store=NodeStore(tmp_path))
    assert kinds(again.admit([by_alice(), signed(work(), EVE, run=RUN)])) == [None, "wrong_key"]
