"""TRL: rows whose signatures were checked on arrival, and a guard that requires it."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from grpo_guard import Completion, Guard, presets
from grpo_guard.adapters.received import parts_of
from grpo_guard.adapters.trl.batch import AUTHENTICATED, rows_from
from grpo_guard.adapters.trl.peers import Sent, peer_rollouts
from grpo_guard.core.verdict import Cause
from grpo_guard.nodes.identity.envelope import signed
from grpo_guard.nodes.identity.gate import Identity
from grpo_guard.nodes.identity.keys import SigningKey
from grpo_guard.nodes.identity.ring import KeyRing
from tests.trl import tiny_trl

ALICE = SigningKey(b"a" * 32)


def trainer() -> Any:
    tok = tiny_trl.tokenizer()
    return SimpleNamespace(
        processing_class=tok,
        model=tiny_trl.model(tok),
        accelerator=SimpleNamespace(unwrap_model=lambda model: model),
        max_completion_length=8,
        state=SimpleNamespace(global_step=5),
    )


def test_rows_of_unknown_signers_are_malformed_and_have_no_node() -> None:
    identity = Identity(KeyRing({"alice": ALICE.public}), run="r")
    prompts = ["3+4?"] * 4
    bare = [
        Completion(prompt, "", completion_ids=[5, 2], round=5, slot=i, node="alice")
        for i, prompt in enumerate(prompts)
    ]
    sealed = [signed(c, ALICE, run="r") for c in bare]
    came = [sealed[0], sealed[0], replace(sealed[2], completion_ids=(6, 2)), bare[3]]
    made = peer_rollouts(
        prompts,
        [Sent.of(*one) for one in zip(*identity.admit(came, round=5), strict=True)],
        trainer(),
    )
    assert made["node"] == [ALICE.public, None, None, None]
    guard = Guard(presets.failures_only().verifier, identity=identity)
    columns = {"prompts": prompts, "completions": ["7"] * 4, **made}
    rows = rows_from(columns)
    judged, verdicts = guard.judge(*parts_of(rows))
    assert [c.node for c in judged] == [ALICE.public, None, None, None]
    assert [v.accepted for v in verdicts] == [True, False, False, False]
    assert {v.cause for v in verdicts[1:]} == {Cause.MALFORMED}
    assert "it was sent before" in verdicts[1].reason


def test_unchecked_rows_are_refused_by_a_guard_with_identity() -> None:
    identity = Identity(KeyRing({"alice": ALICE.public}), run="r")
    made = peer_rollouts(["3+4?"], [Sent("alice", [5, 2], 0)], trainer())
    rows = rows_from({"prompts": ["3+4?"], "completions": ["7"], **made})
    guard = Guard(presets.failures_only().verifier, identity=identity)
    (verdict,) = guard.review(*parts_of(rows)).verdicts
    assert verdict.findings[0].kind == "unsigned"


def test_dataset_column_cannot_mark_rows_as_checked() -> None:
    identity = Identity(KeyRing({"alice": ALICE.public}), run="r")
    made = peer_rollouts(["3+4?"], [Sent(ALICE.public, [5, 2], 0)], trainer())
    guard = Guard(presets.failures_only().verifier, identity=identity)
    for claim in (True, "True", 1):
        columns = {"prompts": ["3+4?"], "completions": ["7"], **made, AUTHENTICATED: [claim]}
        (verdict,) = guard.review(*parts_of(rows_from(columns))).verdicts
        assert verdict.findings[0].kind == "unsigned"


def test_late_work_keeps_the_round_its_node_signed() -> None:
    identity = Identity(KeyRing({"alice": ALICE.public}), run="r")
    came = signed(Completion("3+4?", "", completion_ids=[5, 2], round=4, slot=0), ALICE, run="r")
    (sent,) = [Sent.of(*one) for one in zip(*identity.admit([came], round=5), strict=True)]
    made = peer_rollouts(["3+4?", "3+4?"], [sent, Sent("bob", [5, 2], 0)], trainer())
    assert made["round"] == [4, 5]
