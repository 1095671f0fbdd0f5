"""Envelopes over HTTP: refused before the verifier, and reusable if they were not answered."""

from dataclasses import asdict, replace
from typing import Any

from starlette.testclient import TestClient

from grpo_guard import Completion, Guard
from grpo_guard.guard.references import References
from grpo_guard.nodes.identity.envelope import signed
from grpo_guard.nodes.identity.gate import Identity
from grpo_guard.nodes.identity.keys import SigningKey
from grpo_guard.nodes.identity.ring import KeyRing
from grpo_guard.server.app import create_app
from grpo_guard.server.limits import Limits
from tests.server.server_parts import Words

ALICE = SigningKey(b"a" * 32)


def work(text: str, slot: int = 0, reference: str | None = None) -> Completion:
    bare = Completion("3+4?", text, round=0, slot=slot, node="alice", reference=reference)
    return signed(bare, ALICE, run="r")


def served(verifier: Words, **limits: Any) -> TestClient:
    identity = Identity(KeyRing({"alice": ALICE.public}), run="r")
    guard = Guard(verifier, identity=identity, references=References({"3+4?": 7}))
    return TestClient(create_app(guard, limits=Limits(**limits) if limits else None))


def asked(web: TestClient, *sent: Completion) -> list[str]:
    """Return the outcome of each, and the reason if it was not judged."""
    reply = web.post("/v1/verify", json={"completions": [asdict(c) for c in sent]}).json()
    kinds = [v["findings"][0]["kind"] if v["findings"] else "" for v in reply["verdicts"]]
    outcomes = [v["outcome"] for v in reply["verdicts"]]
    return [f"{o} {k}".strip() for o, k in zip(outcomes, kinds, strict=True)]


def test_refused_completions_do_not_reach_the_verifier() -> None:
    verifier = Words()
    with served(verifier) as web:
        honest = work("7")
        sent = [honest, honest, replace(work("7", 1), text="Hail"), work("7", 2, reference="8")]
        assert asked(web, *sent) == [
            "accept",
            "reject replayed",
            "reject forged",
            "reject forged_reference",
        ]
    assert [(c.node, c.reference) for c in verifier.shown] == [(ALICE.public, "7")]


def test_late_request_may_be_sent_again() -> None:
    verifier = Words()
    with served(verifier, seconds=0.5, running=2) as web:
        slow = work("wait")
        assert asked(web, slow) == ["abstain timeout"]
        verifier.go.set()
        assert asked(web, slow) == ["accept"]
        assert asked(web, slow) == ["reject replayed"]


def test_rewards_of_unsigned_queries_are_refused_too() -> None:
    with served(Words()) as web:
        asks = {"query": ["3+4?7"], "prompts": ["3+4?"], "labels": ["7"]}
        reply = web.post("/get_reward", json=asks).json()
    assert reply["rewards"] == [0.0]
