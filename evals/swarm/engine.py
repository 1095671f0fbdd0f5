"""A swarm in one process.

Every honest node guards, rewards and updates by itself. Nodes that hold the same weights do the
same, so they are one `Member` and computed once; a guard that does not look at weights is shared
by all members and asked once a round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grpo_guard.evals.attacks.adversary import Adversary, adversary_of
from grpo_guard.evals.attacks.base import Attack
from grpo_guard.evals.swarm.coalition import Coalition
from grpo_guard.evals.swarm.config import SwarmConfig
from grpo_guard.evals.swarm.honest import Member
from grpo_guard.evals.swarm.loop import Learned, SwarmLoop, refused
from grpo_guard.evals.swarm.members import (
    GuardFn,
    NodeGuard,
    Peer,
    assigned,
    node_guard,
    one_vocabulary,
)
from grpo_guard.evals.swarm.record import Round, Submitted
from grpo_guard.evals.swarm.terms import Terms
from grpo_guard.evals.tasks.base import Problem, Task
from grpo_guard.guard import Review
from grpo_guard.logprob.coin import PublicCoin

__all__ = ["GuardFn", "Round", "Submitted", "Swarm"]

GuardOf = Callable[[Peer], NodeGuard]
"""Makes the guard of the nodes that start from a peer, on the very model that is trained."""


class Swarm(SwarmLoop):
    """A swarm in training; :meth:`run` drives it, ``model`` is the live policy of node-0.

    Args:
        model: Trained in place. In a heterogeneous swarm node-0's.
        tokenizer: Of the model.
        task: Problems and reward.
        config: Everything else that decides the result.
        attack: What malicious nodes do. Without one every node must be honest.
        guard: One for all honest nodes.
        guard_of: In place of ``guard``: makes one for each member.
        others: Heterogeneous swarms: the policies of the further honest nodes, in order.
        coin: Honest nodes sample under it.

    Raises:
        ValueError: attack or models do not fit the configuration.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        task: Task,
        config: SwarmConfig,
        *,
        attack: Attack | Adversary | None = None,
        guard: GuardFn | NodeGuard | None = None,
        guard_of: GuardOf | None = None,
        others: Sequence[Peer] = (),
        coin: PublicCoin | None = None,
    ) -> None:
        terms = Terms(config, task, coin)
        super().__init__(terms, tokenizer, adversary_of(attack) if attack is not None else None)
        shared = node_guard(guard)
        shares = assigned((Peer(model, tokenizer), *others), config.honest_nodes, config)
        same_ids = one_vocabulary([peer for peer, _ in shares])
        self.members = [
            Member(peer, nodes, guard_of(peer) if guard_of else shared, terms, same_ids=same_ids)
            for peer, nodes in shares
        ]
        self.coalition: Coalition | None = None
        if self.attack is not None:
            self.coalition = Coalition(self.attack, self.members[0].peer, terms)

    @property
    def model(self) -> PreTrainedModel:
        """That of the first honest nodes."""
        return self.members[0].model

    def submit(self, iteration: int, problems: Sequence[Problem]) -> list[Submitted]:
        """What all nodes answer, honest ones first."""
        sent = [
            item
            for member in self.members
            for node in member.nodes
            for item in member.submit(node, iteration, problems)
        ]
        if self.coalition is not None and self.config.malicious:
            sent += self.coalition.submit(iteration, problems)
        return sent

    def hear(self, texts: Sequence[str]) -> list[Problem] | None:
        """Let the coalition hear honest texts, if there is one."""
        return self.coalition.hear(texts) if self.coalition is not None else None

    def successes(self, texts: Sequence[str]) -> int:
        """How many of the texts show the behaviour."""
        return self.coalition.successes(texts) if self.coalition is not None else 0

    def probe(self, iteration: int, problems: Sequence[Problem], each: int) -> list[str]:
        """Samples of all honest nodes."""
        return [
            text
            for member in self.members
            for node in member.nodes
            for text in member.probe(node, iteration, problems, each)
        ]

    def learn(
        self, iteration: int, asked: Sequence[str], submitted: Sequence[Submitted]
    ) -> Learned:
        """Review once per member, then update each of them."""
        started = time.perf_counter()
        reviews = self._reviews(iteration, submitted, asked)
        guard_seconds = time.perf_counter() - started
        norms = [
            member.update(iteration, submitted, review)
            for member, review in zip(self.members, reviews, strict=True)
        ]
        first, guard = reviews[0], self.members[0].guard
        return Learned(
            verdicts=first.verdicts if first else None,
            rejected_by=tuple(refused(review.verdicts, submitted) for review in reviews if review),
            excluded=guard.excluded() if guard else (),
            grad_norm=max(norms),
            guard_seconds=guard_seconds,
        )

    def state(self) -> dict[str, Any]:
        """What members, guards and the coalition keep."""
        return {
            "members": [member.state() for member in self.members],
            "guards": [guard.state() for guard in self._guards()],
            "memory": self.coalition.memory if self.coalition is not None else {},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take up what `state` gave."""
        for member, kept in zip(self.members, state["members"], strict=True):
            member.restore(kept)
        for guard, kept in zip(self._guards(), state["guards"], strict=True):
            guard.restore(kept)
        if self.coalition is not None:
            self.coalition.memory.update(state["memory"])

    def close(self) -> None:
        """Nothing to give back."""

    def _guards(self) -> list[NodeGuard]:
        """The distinct guards, in the members' order."""
        found = {id(member.guard): member.guard for member in self.members if member.guard}
        return list(found.values())

    def _reviews(
        self, iteration: int, submitted: Sequence[Submitted], asked: Sequence[str]
    ) -> list[Review | None]:
        """What each member's guard says; one that members share is asked once."""
        done: dict[int, Review | None] = {}
        for member in self.members:
            if id(member.guard) not in done:
                done[id(member.guard)] = member.review(iteration, asked, submitted)
        return [done[id(member.guard)] for member in self.members]
