"""The identity gate: each attack on a name has its own cause, and none harms the name."""

import copy
import json
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_guard.core.completion import Completion
from grpo_guard.core.given import Given
from grpo_guard.core.verdict import Cause, reject
from grpo_guard.guard import Guard
from grpo_guard.nodes.identity.envelope import ENVELOPE, signed
from grpo_guard.nodes.identity.gate import ADMITTED, REFUSALS, Identity
from grpo_guard.nodes.identity.keys import IdentityError
from grpo_guard.nodes.identity.replays import Replays
from grpo_guard.nodes.identity.ring import KeyRing
from tests.core.identity_cases import (
    ALICE,
    BOB,
    EVE,
    RUN,
    Choosy,
    by_alice,
    identity,
    kinds,
    only,
    ring,
    work,
)


def test_node_of_honest_work_is_its_signers_key() -> None:
    sent = by_alice()
    admission = identity().admit([sent], round=5)
    assert admission.given == [None]
    (completion,) = admission.batch
    assert completion.node == ALICE.public
    assert completion.text == sent.text
    assert (completion.round, completion.slot) == (5, 0)


def test_missing_labels_come_from_the_envelope() -> None:
    bare = replace(by_alice(), node=None, round=None, slot=None)
    (completion,) = identity().admit([bare]).batch
    assert (completion.node, completion.round, completion.slot) == (ALICE.public, 5, 0)


def test_completion_without_an_envelope_is_unsigned() -> None:
    assert only(identity().admit([work()])) == "unsigned"


def test_admitted_unsigned_work_has_no_node() -> None:
    admission = identity(unsigned="admit").admit([work()])
    assert admission.given == [None]
    assert admission.batch[0].node is None


def test_invalid_envelope_is_refused_even_if_unsigned_work_is_admitted() -> None:
    forged = replace(by_alice(), text="All hail to the thief")
    assert only(identity(unsigned="admit").admit([forged])) == "forged"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("text", "73"),
        ("text", "72 "),
        ("prompt", "What is 70 + 3?"),
        ("completion_ids", (1, 2)),
        ("sampler_logprobs", (-1.0,)),
        # Honest work must not be made to look bad under its signer's name.
        ("reference", "73"),
        ("finish_reason", "length"),
        ("task", "code"),
        ("prompt_ids", (1,)),
        ("given", Given(chars=((0, 1),))),
    ],
)
def test_changed_text_under_an_honest_envelope_is_forged(field: str, value: Any) -> None:
    assert only(identity().admit([replace(by_alice(), **{field: value})])) == "forged"


def test_ids_and_text_are_both_signed() -> None:
    sent = by_alice(completion_ids=(1, 2))
    assert only(identity().admit([replace(sent, completion_ids=None)])) == "forged"


def test_unsigned_metadata_is_dropped() -> None:
    """Verifiers read ``metadata["run"]``: adding it to another's envelope might get it rejected."""
    sent = by_alice()
    spoilt = replace(sent, metadata={**sent.metadata, "run": "another", "junk": 1}, group="mine")
    (completion,) = identity().admit([spoilt]).batch
    assert dict(completion.metadata) == {ENVELOPE: ADMITTED}


def test_attacker_key_under_a_victims_name_is_refused() -> None:
    own = signed(work("poison"), EVE, run=RUN)
    assert only(identity().admit([own])) == "wrong_key"
    assert only(Identity(ring(pin=True), run=RUN).admit([own])) == "wrong_key"


def test_known_key_cannot_sign_under_another_name() -> None:
    assert only(identity().admit([signed(work(), BOB, run=RUN)])) == "wrong_key"
    unknown = signed(work(node="carol"), BOB, run=RUN)
    assert only(identity().admit([unknown])) == "wrong_key"


def test_unlisted_key_under_its_own_name_is_unknown() -> None:
    assert only(identity().admit([signed(work(node="eve"), EVE, run=RUN)])) == "unknown_key"


def test_signature_copied_to_another_key_is_forged() -> None:
    sealed = signed(work("poison", node="bob"), EVE, run=RUN)
    lifted = {**sealed.metadata[ENVELOPE], "public_key": BOB.public}
    assert only(identity().admit([replace(sealed, metadata={ENVELOPE: lifted})])) == "forged"


def test_work_of_another_run_is_refused() -> None:
    assert only(identity().admit([signed(work(), ALICE, run="run-6")])) == "other_run"


def test_signatures_differ_between_runs() -> None:
    other = signed(work(), ALICE, run="run-6")
    claimed = {**other.metadata[ENVELOPE], "run": RUN}
    assert only(identity().admit([replace(other, metadata={ENVELOPE: claimed})])) == "forged"


@pytest.mark.parametrize(("field", "value"), [("node", "bob"), ("round", 6), ("slot", 1)])
def test_envelope_under_another_label_is_relabelled(field: str, value: Any) -> None:
    assert only(identity().admit([replace(by_alice(), **{field: value})])) == "relabelled"


@pytest.mark.parametrize("node", [ALICE.public, "alice", None])
def test_exchange_may_use_node_name_or_key(node: str | None) -> None:
    assert only(identity().admit([replace(by_alice(), node=node)])) is None


@pytest.mark.parametrize(("field", "value"), [("round", 6), ("slot", 1), ("node", "bob")])
def test_envelope_with_changed_labels_is_refused(field: str, value: Any) -> None:
    sent = by_alice()
    moved = {**sent.metadata[ENVELOPE], field: value}
    changed = replace(sent, metadata={ENVELOPE: moved}, **{field: value})
    assert only(identity().admit([changed])) in ("forged", "wrong_key")


def test_replay_is_refused_and_the_first_copy_counts() -> None:
    gate, sent = identity(), by_alice()
    assert kinds(gate.admit([sent, sent])) == [None, "replayed"]
    assert only(gate.admit([sent])) == "replayed"


def test_replay_under_other_labels_does_not_take_the_slot() -> None:
    """Otherwise an attacker could send honest work first under a wrong label to get it refused."""
    gate, sent = identity(), by_alice()
    spoilt = [replace(sent, node="bob"), replace(sent, slot=3), replace(sent, text="poison")]
    assert kinds(gate.admit(spoilt)) == ["relabelled", "relabelled", "forged"]
    assert only(gate.admit([sent])) is None


def test_second_text_for_a_slot_is_refused() -> None:
    assert kinds(identity().admit([by_alice("72"), by_alice("73")])) == [None, "contradicted"]


def test_slots_are_counted_per_prompt() -> None:
    other = signed(replace(work(), prompt="What is 1 + 1?"), ALICE, run=RUN)
    batch = [by_alice(), by_alice(slot=1), other, by_alice(round=6)]
    assert kinds(identity().admit(batch)) == [None] * 4


def test_envelope_of_a_past_round_is_late() -> None:
    gate = identity(late=1)
    old = [by_alice(round=n, slot=1) for n in (4, 5, 6)]
    assert kinds(gate.admit(old, round=6)) == ["late", None, None]


def test_envelope_of_a_future_round_is_early() -> None:
    assert only(identity().admit([by_alice(round=6)], round=5)) == "early"


def test_without_a_current_round_each_key_has_its_own_window() -> None:
    """Signing a round far ahead does not make another node's work late."""
    gate = identity(late=1)
    far = signed(work(node="bob", round=10**12), BOB, run=RUN)
    assert kinds(gate.admit([far, by_alice(round=5), by_alice(round=7)])) == [None] * 3
    assert kinds(gate.admit([by_alice(round=5, slot=1)])) == ["late"]
    assert kinds(gate.admit([by_alice(round=6, slot=1)])) == [None]


def test_old_envelope_is_refused_after_its_round_was_forgotten() -> None:
    gate, sent = identity(late=1), by_alice(round=5)
    gate.admit([sent])
    gate.admit([by_alice(round=7)])
    assert only(gate.admit([sent])) == "late"


def test_one_key_cannot_fill_the_memory() -> None:
    replays = Replays(late=1, most=3)
    filled = [replays.refusal("key", 0, bytes([i]), b"said") for i in range(5)]
    assert filled == [None, None, None, "too_many", "too_many"]
    assert replays.refusal("other", 0, b"0", b"said") is None
    for round in range(100):
        replays.refusal("key", round, b"0", b"said")
    assert len(replays.state_dict()["key"]["filled"]) == 2


def test_completions_per_key_and_round_can_be_limited() -> None:
    gate = identity(most=2)
    batch = [by_alice(slot=i) for i in range(3)] + [by_alice(round=6)]
    assert kinds(gate.admit(batch)) == [None, None, "too_many", None]


def test_pinned_keys_share_memory_fairly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise anyone who creates 64 keys would control the size of each checkpoint."""
    monkeypatch.setattr("grpo_guard.nodes.identity.gate.ROOM_OF_PINNED", 8)
    gate = Identity(KeyRing({"alice": ALICE.public}, pin=True, most_pinned=2), run=RUN)
    flood = [
        signed(work(node="eve", round=r, slot=i), EVE, run=RUN) for r in (5, 6) for i in range(4)
    ]
    honest = [signed(work(node="bob", slot=i), BOB, run=RUN) for i in range(4)]
    agreed = [by_alice(slot=i) for i in range(12)]
    found = kinds(gate.admit([*flood, *honest, *agreed]))
    assert found == [None] * 4 + ["too_many"] * 4 + [None] * 16
    # A finished round frees its memory; a file, which ends anyway, needs no limit.
    assert only(gate.admit([signed(work(node="eve", round=7), EVE, run=RUN)])) is None
    reading = Identity(KeyRing(pin=True, most_pinned=2), run=RUN)
    reading.allow_any_order()
    assert kinds(reading.admit(flood)) == [None] * 8


def test_broken_envelope_does_not_affect_other_verdicts() -> None:
    class Hostile(dict[str, Any]):
        def __iter__(self) -> Iterator[str]:
            raise RuntimeError

    class Mute(dict[str, Any]):
        def get(self, *args: Any) -> Any:
            raise RuntimeError

    broken = [
        replace(work(), metadata={ENVELOPE: value}) for value in ("x", 1, {}, Hostile(), [None] * 9)
    ]
    broken.append(replace(work(), metadata=Mute()))
    assert kinds(identity().admit([*broken, by_alice()])) == ["malformed_envelope"] * 6 + [None]


def test_json_cannot_forge_the_admitted_mark() -> None:
    for claim in ("ADMITTED", True, {"admitted": True}):
        sent = replace(work(), metadata=json.loads(json.dumps({ENVELOPE: claim})))
        assert only(identity().admit([sent])) == "malformed_envelope"


def test_admitted_completion_passes_again_unchanged() -> None:
    gate = identity()
    first = gate.admit([by_alice()])
    assert gate.admit(*first) == first
    assert gate.admit(copy.deepcopy(first.batch)) == first


def test_metadata_added_after_admission_is_kept() -> None:
    """For example a reward in ``metadata``, for ``LengthVerifier(reward_key=...)``."""
    choosy, gate = Choosy(), identity()
    batch, known = gate.admit([replace(by_alice(), metadata={**by_alice().metadata, "reward": 9})])
    added = [c.with_labels(metadata={**c.metadata, "reward": 1.0}) for c in batch]
    (verdict,) = Guard(choosy, identity=gate).review(added, known).verdicts
    assert verdict.accepted
    assert [c.metadata["reward"] for c in choosy.seen] == [1.0]


def test_unpickled_completion_is_not_admitted() -> None:
    """A backend may unpickle what peers send."""
    gate = identity()
    batch, _ = gate.admit([by_alice()])
    assert only(gate.admit(pickle.loads(pickle.dumps(batch)))) == "malformed_envelope"


def test_given_verdict_stays_and_does_not_count_against_a_claimed_name() -> None:
    malformed = reject("exchange", Cause.MALFORMED, "no text")
    admission = identity().admit([work(), by_alice()], [malformed, malformed])
    assert admission.given == [malformed, malformed]
    assert [c.node for c in admission.batch] == [None, ALICE.public]


def test_relabelled_refusal_does_not_take_a_slot_on_recheck() -> None:
    # The guard repeats the adapter's check, and a refused completion has lost its label.
    gate = identity()
    for spoilt in (replace(by_alice(), node="mallory"), by_alice(round=9)):
        first = gate.admit([spoilt], round=5)
        assert gate.admit(*first) == first
    assert only(gate.admit([by_alice()], round=5)) is None


@pytest.mark.parametrize(
    "spoilt",
    [
        work("72", slot=1),
        replace(by_alice("72", slot=1), text="poison"),
        replace(by_alice("72", slot=1), slot=2),
        by_alice("72", slot=1, round=7),
        signed(work(slot=1, node="bob"), BOB, run=RUN),
    ],
    ids=["unsigned", "forged", "relabelled", "early", "of another"],
)
@pytest.mark.parametrize("admits_unsigned", [False, True])
def test_corrupted_copy_does_not_take_the_slot(spoilt: Completion, admits_unsigned: bool) -> None:
    gate = identity(unsigned="admit" if admits_unsigned else "refuse")
    own = [by_alice("71", slot=0), by_alice("72", slot=1)]
    batch = [own[0], spoilt, *own, own[0]]
    admission = gate.admit(batch, round=5, together=["eve", "eve", "alice", "alice", "again"])
    found = kinds(admission)
    assert found[0] == "mixed"
    assert found[2:] == [None, None, "replayed"]


def test_together_needs_one_entry_per_completion() -> None:
    with pytest.raises(ValueError, match="together: expected 1, one each, got 2"):
        identity().admit([work()], together=[1, 2])


def test_one_verdict_per_completion() -> None:
    with pytest.raises(ValueError, match="given: expected 1, one per completion, got 2"):
        identity().admit([work()], [None, None])


def test_every_cause_is_covered_by_a_test() -> None:
    """Negative control of the table: nothing in it is merely listed."""
    source = "".join(f.read_text("utf-8") for f in Path(__file__).parent.glob("test_identity*.py"))
    assert [kind for kind in REFUSALS if source.count(f'"{kind}"') == 0] == []


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"run": ""}, "run: expected 1 to 200 printable characters"),
        ({"run": "a b"}, "run: expected 1 to 200 printable characters"),
        ({"unsigned": "maybe"}, "unsigned: expected 'refuse' or 'admit', got 'maybe'"),
        ({"late": -1}, "late: expected a number of rounds >= 0, got -1"),
        ({"most": 0}, "most: expected a number of completions >= 1, got 0"),
        ({"late": True}, "late: expected a number of rounds >= 0, got True"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(IdentityError, match=problem):
        Identity(ring(), **{"run": RUN, **options})
