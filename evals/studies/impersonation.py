"""Which nodes a ledger excludes if an attacker sends under honest names, with and without identity.

``python -m grpo_guard.evals.studies.impersonation [--runs N] [-o FILE]``

A run: three honest nodes and one attacker, 8 completions of each in every round, the guard with its
ledger as in use. A verifier rejects all poison, and honest work by chance. The attacker sends as
many completions as a node in ways that are drawn anew for each: poison under an honest name, with
an altered honest envelope, with its own key, under another run or label, or unsigned; and honest
work once more, before or after its sender. Without identity names are trusted.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Verdict, accept, reject
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.evals.studies.harness import option, rate, say, study
from grpo_guard.guard import Guard
from grpo_guard.nodes.identity.envelope import signed
from grpo_guard.nodes.identity.gate import Identity
from grpo_guard.nodes.identity.keys import SigningKey
from grpo_guard.nodes.identity.ring import KeyRing
from grpo_guard.nodes.ledger import EvidenceLedger
from grpo_guard.nodes.standing import State

ROUNDS: Final = 12
PER_NODE: Final = 8
HONEST: Final = ("ann", "ben", "cara")
ATTACKER: Final = "eve"
# Share of honest work wrongly rejected: ten times a verifier's default budget.
FALSE: Final = 0.01
POISON: Final = "All hail to the thief"
RUN: Final = "study"
WAYS: Final = ("named", "altered", "own_key", "other_run", "moved", "unsigned", "replayed")


class Chance(CompletionVerifier):
    """Rejects poison, and a random share of everything else."""

    name = "chance"

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        """Decide by the text, or at random."""
        return [
            (reject if POISON in c.text or self._rng.random() < FALSE else accept)(self.name)
            for c in batch
        ]


def sent(
    way: str, victim: Completion, rng: random.Random, keys: dict[str, SigningKey]
) -> Completion:
    """Turn an honest completion into the attacker's."""
    poison = victim.with_labels(text=f"{POISON} {rng.random()}", metadata={})
    if way == "replayed":
        return victim
    if way == "altered":
        return poison.with_labels(metadata=victim.metadata)
    if way == "unsigned":
        return poison
    if way == "moved":
        assert victim.slot is not None
        return victim.with_labels(text=poison.text, slot=victim.slot + PER_NODE)
    name = ATTACKER if way == "named" else victim.node
    own = signed(
        poison.with_labels(node=name), keys[ATTACKER], run="x" if way == "other_run" else RUN
    )
    return own.with_labels(node=victim.node)


def played(seed: int, folder: Path, *, identity: bool) -> tuple[set[str], Counter[str]]:
    """(honest nodes that were ever excluded, refusals by kind)."""
    rng = random.Random(seed)
    keys = {name: SigningKey(rng.randbytes(32)) for name in (*HONEST, ATTACKER)}
    ring = KeyRing({name: key.public for name, key in keys.items()})
    known = {name: key.public if identity else name for name, key in keys.items()}
    ledger = EvidenceLedger(folder / f"{seed}-{identity}.sqlite")
    gate = Identity(ring, run=RUN) if identity else None
    guard = Guard(Chance(rng), ledger=ledger, identity=gate)
    excluded, refusals, victim = set[str](), Counter[str](), rng.choice(HONEST)
    for round in range(ROUNDS):
        honest = [
            signed(
                Completion(f"{round}?", f"{rng.random()}", node=name, round=round, slot=slot),
                keys[name],
                run=RUN,
            )
            for name in (*HONEST, ATTACKER)
            for slot in range(PER_NODE)
        ]
        own = [c for c in honest if c.node == victim]
        batch = honest + [sent(rng.choice(WAYS), c, rng, keys) for c in own]
        rng.shuffle(batch)
        verdicts = guard.review(batch).verdicts
        refusals.update(v.findings[0].kind for v in verdicts if v.verifier == "identity")
        excluded |= {n for n, key in known.items() if ledger.state(key) is State.HARD}
    ledger.close()
    return excluded & {*HONEST}, refusals


def measure(runs: int) -> dict[str, Any]:
    """Compute all figures."""
    found: dict[str, Any] = {"rounds": ROUNDS, "per_node": PER_NODE, "falsely_rejected": FALSE}
    for identity in (False, True):
        nodes = accused = 0
        refusals = Counter[str]()
        with tempfile.TemporaryDirectory() as folder:
            for seed in range(runs):
                excluded, kinds = played(seed, Path(folder), identity=identity)
                nodes, accused = nodes + len(excluded), accused + bool(excluded)
                refusals += kinds
                for left in Path(folder).iterdir():
                    left.unlink()
                if (seed + 1) % 100 == 0:
                    say(f"identity {identity}", seed + 1, runs)
        found["with identity" if identity else "without identity"] = {
            "runs that exclude an honest node": rate(accused, runs),
            "honest nodes excluded": rate(nodes, runs * len(HONEST)),
            "refused": dict(refusals),
        }
    return found


if __name__ == "__main__":
    study("impersonation", measure, option("--runs", type=int, default=1_000, help="of each kind"))
