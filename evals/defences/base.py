"""What a defence defines: how honest nodes sample, the guard before their reward, their update."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from grpo_guard.core.completion import Completion
from grpo_guard.core.ensemble import inner_verifiers
from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.core.verifier import CompletionVerifier, Composed
from grpo_guard.evals.swarm.config import SwarmConfig
from grpo_guard.evals.swarm.honest import Member
from grpo_guard.evals.swarm.members import NodeGuard, Peer
from grpo_guard.evals.swarm.terms import Terms
from grpo_guard.evals.tasks.base import Task
from grpo_guard.guard import Guard, Review
from grpo_guard.guard.policy import Policy
from grpo_guard.logprob.coin import PublicCoin
from grpo_guard.nodes.ledger import EvidenceLedger
from grpo_guard.nodes.standing import State


@dataclass(frozen=True, slots=True)
class Ground:
    """The context that a defence is built for; ``folder`` is for its ledger, one per run."""

    config: SwarmConfig
    task: Task
    folder: Path
    coin: PublicCoin | None = None

    @property
    def sampling(self) -> SamplingSpec:
        """The declared sampler."""
        return self.config.sampling

    @property
    def key(self) -> str:
        """The key of the guards' random draws, so that runs with the same seed are equal.

        The measuring code knows it, but no attack of the suite reads it. In use, a guard draws its
        own.
        """
        return f"guard of a measured run, seed {self.config.seed}"


@dataclass(frozen=True, slots=True)
class Defence:
    """A way to defend.

    Args:
        name: Appears in results.
        build: Makes the guard of the nodes that start from a peer; None = no guard.
        coin: Honest nodes sample under a public coin.
        training: Fields of `SwarmConfig` that it sets.
        member: How honest nodes learn from a round.
        terms: What nodes agree on in addition to the configuration.
    """

    name: str
    build: Callable[[Peer, Ground], NodeGuard] | None = None
    coin: bool = False
    training: Mapping[str, Any] = field(default_factory=dict)
    member: type[Member] = Member
    terms: type[Terms] = Terms


COUNTED: Final = Policy(max_abstain_rate=1.0)
"""Abstentions are counted in every result; an exception would end the measurement. The swarm's own
setting decides what a rejection costs."""


def counting(verifier: CompletionVerifier, tokenizer: Any) -> Guard:
    """Guard with a single verifier, counting abstentions; ``tokenizer`` reads ids for it."""
    own = None if verifier.compares_ids else tokenizer
    return Guard(verifier, policy=COUNTED, tokenizer=own)


class VerifierGuard:
    """A guard of the library before a node's reward, with its memory."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.ledger = guard.ledger if isinstance(guard.ledger, EvidenceLedger) else None
        self._parts = [v for v in inner_verifiers(guard.verifier) if not isinstance(v, Composed)]
        self._nodes: tuple[str, ...] = ()

    def begin(self, round: int, prompts: Sequence[str]) -> None:
        """Begin the round of verifiers that depend on it."""
        for part in self._parts:
            if hasattr(part, "begin_round"):
                part.begin_round(round, prompts)

    def review(self, batch: list[Completion]) -> Review:
        """Review a round, and keep the names of its nodes for `excluded`."""
        self._nodes = tuple(sorted({completion.node or "" for completion in batch}))
        return self.guard.review(batch)

    def excluded(self) -> tuple[str, ...]:
        """Return the last round's nodes that the ledger excludes; none without a ledger."""
        if self.ledger is None:
            return ()
        return tuple(n for n in self._nodes if self.ledger.state(self._key(n)) is State.HARD)

    def _key(self, node: str) -> str:
        """Return the node's key in the ledger."""
        identity = self.guard.identity
        return node if identity is None else identity.ring.key_of(node) or node

    def state(self) -> dict[str, Any]:
        """Return the guard's memory."""
        return self.guard.state_dict()

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the guard's memory."""
        self.guard.load_state_dict(state)


def emptied(folder: Path) -> Path:
    """Remove the ledgers that an earlier attempt left in a run's folder, and return the folder."""
    for path in folder.glob("*.sqlite"):
        for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
            path.with_name(name).unlink(missing_ok=True)
    return folder
