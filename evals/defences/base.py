"""The interface of a defence: how honest nodes sample, guard rewards and update."""

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
    """The run that a defence is built for; its ``folder``, one per run, holds the ledger."""

    config: SwarmConfig
    task: Task
    folder: Path
    coin: PublicCoin | None = None

    @property
    def sampling(self) -> SamplingSpec:
        """The declared sampler of the swarm."""
        return self.config.sampling

    @property
    def key(self) -> str:
        """The key for the guards' random draws, which makes runs with the same seed identical.

        The measuring code knows the key, but no attack in the suite reads it. Outside measurements,
        a guard draws its own key.
        """
        return f"guard of a measured run, seed {self.config.seed}"


@dataclass(frozen=True, slots=True)
class Defence:
    """A way to defend a swarm.

    Args:
        name: Name in results.
        build: Builds the guard of the nodes that start from a peer; None for no guard.
        coin: Whether honest nodes sample under a public coin.
        training: Fields of `SwarmConfig` that the defence sets.
        member: Class of the honest nodes, which determines how they learn from a round.
        terms: Class of the terms that nodes agree on, in addition to the configuration.
    """

    name: str
    build: Callable[[Peer, Ground], NodeGuard] | None = None
    coin: bool = False
    training: Mapping[str, Any] = field(default_factory=dict)
    member: type[Member] = Member
    terms: type[Terms] = Terms


COUNTED: Final = Policy(max_abstain_rate=1.0)
"""A policy that never raises because of abstentions, which would end the measurement; every result
counts them. The cost of a rejection is set in the swarm's configuration."""


def counting(verifier: CompletionVerifier, tokenizer: Any) -> Guard:
    """Build a guard with a single verifier that counts abstentions; ``tokenizer`` decodes ids if
    the verifier does not compare them with the text itself."""
    own = None if verifier.compares_ids else tokenizer
    return Guard(verifier, policy=COUNTED, tokenizer=own)


class VerifierGuard:
    """Applies one of the library's guards before the reward, and keeps the guard's memory."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.ledger = guard.ledger if isinstance(guard.ledger, EvidenceLedger) else None
        self._parts = [v for v in inner_verifiers(guard.verifier) if not isinstance(v, Composed)]
        self._nodes: tuple[str, ...] = ()

    def begin(self, round: int, prompts: Sequence[str]) -> None:
        """Begin a round in the verifiers that depend on it."""
        for part in self._parts:
            if hasattr(part, "begin_round"):
                part.begin_round(round, prompts)

    def review(self, batch: list[Completion]) -> Review:
        """Review the completions of a round, and keep the names of their nodes for `excluded`."""
        self._nodes = tuple(sorted({completion.node or "" for completion in batch}))
        return self.guard.review(batch)

    def excluded(self) -> tuple[str, ...]:
        """Return the nodes of the last round that the ledger excludes; none without a ledger."""
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
    """Remove any ledgers that an earlier attempt left in a run's folder, and return the folder."""
    for path in folder.glob("*.sqlite"):
        for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
            path.with_name(name).unlink(missing_ok=True)
    return folder
