"""The interface of a defence: how honest nodes sample, guard rewards and update."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.evals.swarm.config import SwarmConfig
from grpo_guard.evals.swarm.honest import Member
from grpo_guard.evals.swarm.members import Peer, VerifierGuard
from grpo_guard.evals.swarm.terms import Terms
from grpo_guard.evals.tasks.base import Task
from grpo_guard.guard import Guard
from grpo_guard.guard.policy import Policy
from grpo_guard.logprob.coin import PublicCoin


@dataclass(frozen=True, slots=True)
class Ground:
    """The run that a defence is built for; its ``folder``, one per run, holds the ledger."""

    config: SwarmConfig
    task: Task
    folder: Path
    coin: PublicCoin | None = None

    @property
    def key(self) -> str:
        """The key for the guards' random draws, which makes runs with the same seed identical.

        The measuring code knows the key, but no attack in the suite reads it. Outside measurements,
        a guard draws its own key.
        """
        return f"guard of a measured run, seed {self.config.seed}"


Build: TypeAlias = Callable[[Peer, Ground], VerifierGuard]
"""Builds the guard of the nodes that start from a peer."""


@dataclass(frozen=True, slots=True)
class Defence:
    """A way to defend a swarm.

    Args:
        build: Builds the guard of the nodes that start from a peer; None for no guard.
        coin: Whether honest nodes sample under a public coin.
        training: Fields of `SwarmConfig` that the defence sets.
        member: Class of the honest nodes, which determines how they learn from a round.
        terms: Class of the terms that nodes agree on, in addition to the configuration.
    """

    name: str
    build: Build | None = None
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


def emptied(folder: Path) -> Path:
    """Remove any ledgers that an earlier attempt left in a run's folder, and return the folder."""
    for path in folder.glob("*.sqlite"):
        for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
            path.with_name(name).unlink(missing_ok=True)
    return folder
