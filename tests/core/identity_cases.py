"""Nodes, their keys, and completions that they sign."""

from collections.abc import Sequence
from typing import Any

from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Cause, Verdict, accept, reject
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.guard.settlement import Ruling, ruling_of
from grpo_guard.nodes.identity.envelope import signed
from grpo_guard.nodes.identity.gate import NAME, Admission, Identity
from grpo_guard.nodes.identity.keys import SigningKey
from grpo_guard.nodes.identity.ring import KeyRing

ALICE, BOB, EVE = (SigningKey(bytes([i]) * 32) for i in (1, 2, 3))
RUN = "run-7"


def ring(**options: Any) -> KeyRing:
    return KeyRing({"alice": ALICE.public, "bob": BOB.public}, **options)


def identity(**options: Any) -> Identity:
    return Identity(ring(), run=RUN, **options)


def work(text: str = "72", **fields: Any) -> Completion:
    defaults: dict[str, Any] = {"round": 5, "slot": 0, "node": "alice"}
    return Completion("What is 70 + 2?", text, **defaults | fields)


def by_alice(text: str = "72", **fields: Any) -> Completion:
    return signed(work(text, **fields), ALICE, run=RUN)


def kinds(admission: Admission) -> list[str | None]:
    """Return why each is refused, None if admitted; a refused completion has no node."""
    for completion, verdict in zip(*admission, strict=True):
        if verdict is not None:
            assert verdict.rejected
            assert verdict.cause is Cause.UNAUTHENTICATED
            assert verdict.verifier == NAME
            assert completion.node is None
            assert ruling_of(verdict) is Ruling.BARRED
    return [None if v is None else v.findings[0].kind for v in admission.given]


def only(admission: Admission) -> str | None:
    (kind,) = kinds(admission)
    return kind


class Choosy(CompletionVerifier):
    """Rejects "poison" and records its input."""

    name = "choosy"

    def __init__(self) -> None:
        self.seen: list[Completion] = []

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        self.seen += batch
        return [(reject if "poison" in c.text else accept)(self.name) for c in batch]
