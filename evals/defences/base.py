"""What a defence is: how honest nodes sample, what stands before their reward, how they update."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from grpo_guard.completion import Completion
from grpo_guard.ensemble import inner_verifiers
from grpo_guard.evals.swarm.config import SwarmConfig
from grpo_guard.evals.swarm.honest import Member
from grpo_guard.evals.swarm.members import NodeGuard, Peer
from grpo_guard.evals.swarm.terms import Terms
from grpo_guard.evals.tasks.base import Task
from grpo_guard.guard import Guard, Review
from grpo_guard.logprob.coin import PublicCoin
from grpo_guard.logprob.replay.verifier import SeedReplayVerifier
from grpo_guard.nodes.ledger import EvidenceLedger
from grpo_guard.nodes.standing import State
from grpo_guard.policy import Policy
from grpo_guard.sampling import SamplingSpec
from grpo_guard.verifier import CompletionVerifier, Composed


@dataclass(frozen=True, slots=True)
class Ground:
    """What a defence is built for.

    Args:
        config: Of the swarm.
        task: Its problems.
        folder: For a ledger; one per run.
        coin: Under which honest nodes sample; None where they do not.
    """

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
        """What guards draw with, so that a run with the same seed is the same run.

        Known to whoever measures; no attack of the suite reads it. A guard in use draws its own.
        """
        return f"guard of a measured run, seed {self.config.seed}"


@dataclass(frozen=True, slots=True)
class Defence:
    """A way to defend.

    Args:
        name: Stands in results.
        build: Makes the guard of the nodes that start from a peer; None = no guard.
        coin: Honest nodes sample under a public coin.
        training: Fields of `SwarmConfig` that it sets.
        member: How honest nodes learn from a round.
        terms: What nodes agree on beside the configuration.
        needs: Called before anything runs; raises ``ValueError`` where the environment lacks
            something, such as a judge.
    """

    name: str
    build: Callable[[Peer, Ground], NodeGuard] | None = None
    coin: bool = False
    training: Mapping[str, Any] = field(default_factory=dict)
    member: type[Member] = Member
    terms: type[Terms] = Terms
    needs: Callable[[], object] | None = None


COUNTED: Final = Policy(max_abstain_rate=1.0)
"""An abstention is counted in every result; an exception would end the measurement. What a
rejection costs is the swarm's own setting."""


def counting(verifier: CompletionVerifier, tokenizer: Any) -> Guard:
    """A verifier by itself, whose abstentions are counted; ``tokenizer`` reads ids for it."""
    own = None if verifier.compares_ids else tokenizer
    return Guard(verifier, policy=COUNTED, tokenizer=own)


class ByRound(CompletionVerifier):
    """A verifier that goes by what a round asks."""

    @abstractmethod
    def begin_round(self, round: int, prompts: Sequence[str]) -> None:
        """From now on this round's prompts count."""


class VerifierGuard:
    """A guard of the library before a node's reward, with its memory.

    Args:
        guard: What decides, as a user would have it.
    """

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.ledger = guard.ledger if isinstance(guard.ledger, EvidenceLedger) else None
        self._parts = [v for v in inner_verifiers(guard.verifier) if not isinstance(v, Composed)]
        self._nodes: tuple[str, ...] = ()

    def begin(self, round: int, prompts: Sequence[str]) -> None:
        for part in self._parts:
            if isinstance(part, SeedReplayVerifier | ByRound):
                part.begin_round(round, prompts)

    def review(self, batch: list[Completion]) -> Review:
        self._nodes = tuple(sorted({completion.node or "" for completion in batch}))
        return self.guard.review(batch)

    def excluded(self) -> tuple[str, ...]:
        if self.ledger is None:
            return ()
        return tuple(n for n in self._nodes if self.ledger.state(self._key(n)) is State.HARD)

    def _key(self, node: str) -> str:
        """What the ledger calls a node."""
        identity = self.guard.identity
        return node if identity is None else identity.ring.key_of(node) or node

    def state(self) -> dict[str, Any]:
        return self.guard.state_dict()

    def restore(self, state: dict[str, Any]) -> None:
        self.guard.load_state_dict(state)


def emptied(folder: Path) -> Path:
    """A run's folder without the ledgers that an earlier try left there."""
    for path in folder.glob("*.sqlite"):
        _remove(path)
    return folder


def _remove(path: Path) -> None:
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        path.with_name(name).unlink(missing_ok=True)
