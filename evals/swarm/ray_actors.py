"""What runs inside the actors of a swarm on Ray; Ray itself is not needed to read this."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from grpo_guard.evals.attacks.adversary import Adversary
from grpo_guard.evals.swarm.coalition import Coalition
from grpo_guard.evals.swarm.honest import Member
from grpo_guard.evals.swarm.loop import refused
from grpo_guard.evals.swarm.members import NodeGuard, Peer
from grpo_guard.evals.swarm.record import Submitted
from grpo_guard.evals.swarm.terms import Terms
from grpo_guard.evals.tasks.base import Problem
from grpo_guard.verdict import Verdict

GuardIn = Callable[[Peer, Path], NodeGuard]
"""Makes the guard of a node on the model that it trains, in a folder of its own."""


@dataclass(frozen=True, slots=True)
class NodeLearned:
    """One node's side of `Learned`; ``verdicts`` only where they were asked for."""

    verdicts: list[Verdict] | None
    rejected: int | None
    excluded: tuple[str, ...]
    grad_norm: float
    guard_seconds: float


class HonestNode:
    """One honest node.

    Args:
        number: Of the node.
        peer: What it starts from.
        terms: Of the swarm.
        guard_in: Makes its guard; None = no guard.
        folder: For what the guard writes.
        same_ids: As `Member` has it.
        threads: Of torch. Other counts may give other last bits.
    """

    def __init__(
        self,
        number: int,
        peer: Peer,
        terms: Terms,
        guard_in: GuardIn | None,
        folder: Path,
        *,
        same_ids: bool,
        threads: int,
    ) -> None:
        torch.set_num_threads(threads)
        self.number = number
        folder.mkdir(parents=True, exist_ok=True)
        guard = None if guard_in is None else guard_in(peer, folder)
        self.member = Member(peer, (number,), guard, terms, same_ids=same_ids)

    def ready(self) -> bool:
        """The actor stands."""
        return True

    def weights(self) -> dict[str, torch.Tensor]:
        """The live weights."""
        return dict(self.member.model.state_dict())

    def submit(self, iteration: int, problems: Sequence[Problem]) -> list[Submitted]:
        """Its share of a round."""
        return self.member.submit(self.number, iteration, problems)

    def probe(self, iteration: int, problems: Sequence[Problem], each: int) -> list[str]:
        """Its turn among held-out problems."""
        return self.member.probe(self.number, iteration, problems, each)

    def learn(
        self, iteration: int, asked: Sequence[str], submitted: Sequence[Submitted], tell: bool
    ) -> NodeLearned:
        """Review and update; ``tell``: with the verdicts."""
        started = time.perf_counter()
        review = self.member.review(iteration, asked, submitted)
        seconds = time.perf_counter() - started
        norm = self.member.update(iteration, submitted, review)
        guard = self.member.guard
        return NodeLearned(
            verdicts=review.verdicts if review is not None and tell else None,
            rejected=refused(review.verdicts, submitted) if review is not None else None,
            excluded=guard.excluded() if guard is not None else (),
            grad_norm=norm,
            guard_seconds=seconds,
        )

    def state(self) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """(weights and optimiser, what the guard remembers)."""
        guard = self.member.guard
        return self.member.state(), None if guard is None else guard.state()

    def restore(self, member: dict[str, Any], guard: dict[str, Any] | None) -> None:
        """Take up what `state` gave."""
        self.member.restore(member)
        if self.member.guard is not None and guard is not None:
            self.member.guard.restore(guard)


class MaliciousNodes:
    """The coalition, with a copy of node-0's model.

    Args:
        adversary: What it does.
        peer: Node-0's, as it is at first.
        terms: Of the swarm.
        threads: Of torch.
    """

    def __init__(self, adversary: Adversary, peer: Peer, terms: Terms, *, threads: int) -> None:
        torch.set_num_threads(threads)
        self.coalition = Coalition(adversary, peer, terms)

    def ready(self) -> bool:
        """The actor stands."""
        return True

    def submit(
        self, iteration: int, problems: Sequence[Problem], weights: dict[str, torch.Tensor]
    ) -> list[Submitted]:
        """Its share of a round, with node-0's live ``weights``."""
        self.coalition.peer.model.load_state_dict(weights)
        return self.coalition.submit(iteration, problems)

    def hear(self, texts: Sequence[str]) -> list[Problem] | None:
        """As `Coalition.hear`."""
        return self.coalition.hear(texts)

    def successes(self, texts: Sequence[str]) -> int:
        """How many show the behaviour."""
        return self.coalition.successes(texts)

    def state(self) -> dict[str, Any]:
        """What it remembers."""
        return self.coalition.memory

    def restore(self, memory: dict[str, Any]) -> None:
        """Take up what `state` gave."""
        self.coalition.memory.update(memory)
