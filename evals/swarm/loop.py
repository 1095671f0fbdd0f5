"""The round loop: generate, exchange, guard, reward, update, wherever the nodes compute."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grpo_guard.evals.attacks.adversary import Adversary
from grpo_guard.evals.swarm.record import Round, Submitted, record
from grpo_guard.evals.swarm.terms import Terms
from grpo_guard.evals.tasks.base import Problem
from grpo_guard.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Learned:
    """What came of a round's reviews and updates.

    Attributes:
        verdicts: Of the first honest node; None without a guard.
        rejected_by: Honest completions that each distinct model's guard rejects.
        excluded: Nodes that the first honest node takes nothing from any more.
        grad_norm: The largest.
        guard_seconds: Of the reviews.
    """

    verdicts: list[Verdict] | None
    rejected_by: tuple[int, ...]
    excluded: tuple[str, ...]
    grad_norm: float
    guard_seconds: float


Submit = Callable[[int, Sequence[Problem]], list[Submitted]]
"""(round, problems of the honest nodes) -> what all nodes answer, node by node."""


class Exchange:
    """The generation phase: what all nodes answer, group by group.

    Args:
        terms: Of the swarm.
        submit: Lets the nodes answer.
    """

    def __init__(self, terms: Terms, submit: Submit) -> None:
        self.terms, self.submit = terms, submit

    def play(self, iteration: int) -> tuple[list[Submitted], list[str]]:
        """(completions group by group, prompts that the round asks).

        Vertical: under a coin the prompts of all nodes, in their order, else of honest ones.
        """
        problems = self.terms.problems(iteration)
        sent = self.submit(iteration, problems)
        asked = [*problems, *self.terms.assigned(iteration, problems)]
        # Sorting keeps the order within a group, in which honest nodes stand first.
        by_group = sorted(sent, key=lambda item: item.completion.group or 0)
        return by_group, [problem.prompt for problem in asked]


class SwarmLoop(ABC):
    """A swarm in training; :meth:`run` drives it.

    Args:
        terms: Settings, task and coin.
        tokenizer: Node-0's.
        attack: What malicious nodes do.

    Raises:
        ValueError: the settings do not go together.
    """

    def __init__(
        self, terms: Terms, tokenizer: PreTrainedTokenizerBase, attack: Adversary | None
    ) -> None:
        config = terms.config
        if config.malicious and attack is None:
            raise ValueError(f"attack: expected one, since {config.malicious} nodes are malicious")
        if terms.coin is not None and (config.models != "homogeneous" or config.apart):
            raise ValueError(
                "coin: expected a homogeneous swarm, whose nodes can replay each other"
            )
        self.terms, self.config, self.task = terms, config, terms.task
        self.tokenizer, self.attack = tokenizer, attack
        self.exchange = Exchange(terms, self.submit)

    @property
    @abstractmethod
    def model(self) -> PreTrainedModel:
        """The policy of node-0 as it stands."""

    @abstractmethod
    def submit(self, iteration: int, problems: Sequence[Problem]) -> list[Submitted]:
        """What all nodes answer, node by node, the malicious ones last."""

    @abstractmethod
    def hear(self, texts: Sequence[str]) -> list[Problem] | None:
        """Tell the attack what honest nodes said; as `Coalition.hear`."""

    @abstractmethod
    def successes(self, texts: Sequence[str]) -> int:
        """How many texts show the attack's behaviour."""

    @abstractmethod
    def probe(self, iteration: int, problems: Sequence[Problem], each: int) -> list[str]:
        """``each`` completions of each problem by honest nodes, who take turns."""

    @abstractmethod
    def learn(
        self, iteration: int, asked: Sequence[str], submitted: Sequence[Submitted]
    ) -> Learned:
        """Every honest node reviews and updates."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Everything that a run needs to go on after a round: tensors and plain values."""

    @abstractmethod
    def restore(self, state: dict[str, Any]) -> None:
        """Take up what `state` gave, on a swarm that was made in the same way."""

    @abstractmethod
    def close(self) -> None:
        """Give back what the nodes hold; the swarm is of no use afterwards."""

    def run(self, on_round: Callable[[Round], None] | None = None) -> list[Round]:
        """Train for ``config.iterations`` rounds and return their records."""
        rounds = []
        for iteration in range(self.config.iterations):
            record = self.step(iteration)
            rounds.append(record)
            if on_round is not None:
                on_round(record)
        return rounds

    def step(self, iteration: int) -> Round:
        """Play one round and update the models."""
        started = time.perf_counter()
        submitted, asked = self.exchange.play(iteration)
        asr = self._asr(submitted, iteration)
        learned = self.learn(iteration, asked, submitted)
        return record(
            iteration, submitted, learned.verdicts, asr=asr, grad_norm=learned.grad_norm,
            guard_seconds=learned.guard_seconds, rejected_by=learned.rejected_by,
            excluded=learned.excluded, seconds=time.perf_counter() - started,
        )  # fmt: skip

    def _asr(self, submitted: Sequence[Submitted], iteration: int) -> float:
        if self.attack is None:
            return 0.0
        texts = [item.completion.text for item in submitted if not item.malicious]
        # As many probes as completions, so that both rates have the same denominator.
        each = max(1, len(texts) // self.config.prompts)
        if self.config.success_on is not None:
            each = self.config.success_on[1]
        probes = self.hear(texts)
        if probes is not None:
            texts = self.probe(iteration, probes, each)
        return self.successes(texts) / len(texts)


def refused(verdicts: Sequence[Verdict], submitted: Sequence[Submitted]) -> int:
    """How many honest completions the verdicts reject."""
    pairs = zip(verdicts, submitted, strict=True)
    return sum(verdict.rejected and not item.malicious for verdict, item in pairs)
