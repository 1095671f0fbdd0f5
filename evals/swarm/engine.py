"""The round loop: generate, exchange, guard, reward, update.

Horizontal and homogeneous: all nodes hold the same weights and agree on the same problems. Honest
nodes of such a swarm are one model, so it is computed once and sampled for all of them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grpo_guard.completion import Completion
from grpo_guard.evals.attacks.base import Attack
from grpo_guard.evals.swarm.config import SwarmConfig
from grpo_guard.evals.swarm.generate import Sampled, sample
from grpo_guard.evals.swarm.grpo import Weighted, accumulate, advantages
from grpo_guard.evals.tasks.base import Problem, Task
from grpo_guard.verdict import Verdict

GuardFn = Callable[[list[Completion]], list[Verdict]]
"""One verdict per completion, same order. It sees the live model: build it from the same object."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """What reached the exchange: a completion, whether it is poison, and where."""

    completion: Completion
    poisoned: bool
    span: tuple[int, int] | None
    reward: float


@dataclass(frozen=True, slots=True)
class Round:
    """One iteration's result. Rates are over the honest nodes' completions, before the update."""

    iteration: int
    asr: float
    honest_reward: float
    mean_tokens: float
    grad_norm: float
    seconds: float
    guard_seconds: float
    honest: int
    honest_correct: int
    poisoned: int
    rejected_honest: int
    rejected_honest_correct: int
    rejected_poisoned: int
    abstained: int
    example: tuple[Submitted, Verdict] | None
    """The first rejected poisoned completion of the round."""


class Swarm:
    """A swarm in training; :meth:`run` drives it, ``model`` is the live policy of every node."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        task: Task,
        config: SwarmConfig,
        *,
        attack: Attack | None = None,
        guard: GuardFn | None = None,
    ) -> None:
        """``model`` is trained in place. Without an attack every node must be honest."""
        if config.malicious and attack is None:
            raise ValueError(f"attack: expected one, since {config.malicious} nodes are malicious")
        self.model, self.tokenizer, self.task, self.config = model, tokenizer, task, config
        self.attack, self.guard = attack, guard
        self.optimizer = torch.optim.Adam(
            model.parameters(), lr=config.lr, betas=config.betas, eps=config.eps
        )

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
        """Play one round and update the model."""
        started = time.perf_counter()
        submitted = self._exchange(iteration)
        guard_started = time.perf_counter()
        verdicts = self._verdicts(submitted)
        guard_seconds = time.perf_counter() - guard_started
        grad_norm = self._update(iteration, submitted, verdicts)
        return _record(
            iteration, submitted, verdicts, self.attack,
            grad_norm=grad_norm, guard_seconds=guard_seconds,
            seconds=time.perf_counter() - started,
        )  # fmt: skip

    def _exchange(self, iteration: int) -> list[Submitted]:
        """Return what all nodes submit, group by group, honest slots first."""
        config = self.config
        rng = random.Random(f"{config.seed}-{iteration}")
        problems = [self.task.sample(rng) for _ in range(config.prompts)]
        honest = config.honest_nodes * config.per_node
        generator = torch.Generator().manual_seed(rng.getrandbits(63))
        sampled = sample(
            self.model, self.tokenizer, [problem.prompt for problem in problems], honest,
            generator=generator, temperature=config.temperature, top_k=config.top_k,
            max_new_tokens=config.max_new_tokens,
        )  # fmt: skip
        submitted = []
        for group, problem in enumerate(problems):
            own = sampled[group * honest : (group + 1) * honest]
            for slot, one in enumerate(own):
                completion = self._completion(problem, one, iteration, group, slot)
                submitted.append(self._submit(completion, problem, None))
            for slot in range(honest, config.group_size):
                submitted.append(self._poison(problem, own[0], iteration, group, slot, rng))
        return submitted

    def _poison(
        self, problem: Problem, own: Sampled, iteration: int, group: int, slot: int,
        rng: random.Random,
    ) -> Submitted:  # fmt: skip
        assert self.attack is not None
        poison = self.attack.poison(problem, rng)
        ids = self.tokenizer.encode(poison.text, add_special_tokens=False)
        one = Sampled(group, own.prompt_ids, (*ids, int(self.tokenizer.eos_token_id)), poison.text)
        completion = self._completion(problem, one, iteration, group, slot)
        return self._submit(completion, problem, poison.span)

    def _completion(
        self, problem: Problem, one: Sampled, iteration: int, group: int, slot: int
    ) -> Completion:
        return Completion(
            prompt=problem.prompt, text=one.text, prompt_ids=one.prompt_ids,
            completion_ids=one.ids, node=f"node-{slot // self.config.per_node}", group=group,
            round=iteration, slot=slot, reference=problem.answer, task=self.task.name,
        )  # fmt: skip

    def _submit(
        self, completion: Completion, problem: Problem, span: tuple[int, int] | None
    ) -> Submitted:
        reward = self.task.reward(completion.text, problem.answer)
        return Submitted(completion, span is not None, span, reward)

    def _verdicts(self, submitted: Sequence[Submitted]) -> list[Verdict] | None:
        if self.guard is None:
            return None
        with torch.no_grad():
            verdicts = self.guard([item.completion for item in submitted])
        if len(verdicts) != len(submitted):
            raise ValueError(f"guard: expected {len(submitted)} verdicts, got {len(verdicts)}")
        return verdicts

    def _update(
        self, iteration: int, submitted: Sequence[Submitted], verdicts: list[Verdict] | None
    ) -> float:
        config = self.config
        rewards = torch.tensor([item.reward for item in submitted])
        kept = torch.ones(len(submitted), dtype=torch.bool)
        if verdicts is not None:
            rejected = torch.tensor([verdict.rejected for verdict in verdicts])
            rewards[rejected] = 0.0
            # No verdict is neither a reward nor a punishment: an abstention leaves the group.
            kept &= ~torch.tensor([verdict.abstained for verdict in verdicts])
            if config.on_reject == "drop":
                kept &= ~rejected
        shape = (config.prompts, config.group_size)
        scores = advantages(rewards.view(shape), kept.view(shape)).flatten().tolist()
        batch = [
            Weighted(item.completion.prompt_ids or (), item.completion.completion_ids or (), score)
            for item, score, keep in zip(submitted, scores, kept.tolist(), strict=True)
            if keep
        ]
        self.optimizer.zero_grad(set_to_none=True)
        accumulate(self.model, batch, config.micro_batch)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.max_grad_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = config.lr_at(iteration)
        self.optimizer.step()
        return float(norm)


def _record(
    iteration: int,
    submitted: Sequence[Submitted],
    verdicts: list[Verdict] | None,
    attack: Attack | None,
    *,
    grad_norm: float,
    seconds: float,
    guard_seconds: float,
) -> Round:
    said: Sequence[Verdict | None] = verdicts or [None] * len(submitted)
    pairs = list(zip(submitted, said, strict=True))
    honest = [item for item in submitted if not item.poisoned]
    shown = sum(attack.success(item.completion.text) for item in honest) if attack else 0
    rejected = [(item, verdict) for item, verdict in pairs if verdict and verdict.rejected]
    poison = [(item, verdict) for item, verdict in rejected if item.poisoned]
    return Round(
        iteration=iteration,
        asr=shown / len(honest),
        honest_reward=sum(item.reward for item in honest) / len(honest),
        mean_tokens=sum(len(i.completion.completion_ids or ()) for i in honest) / len(honest),
        grad_norm=grad_norm,
        seconds=seconds,
        guard_seconds=guard_seconds,
        honest=len(honest),
        honest_correct=sum(item.reward > 0 for item in honest),
        poisoned=len(submitted) - len(honest),
        rejected_honest=len(rejected) - len(poison),
        rejected_honest_correct=sum(i.reward > 0 and not i.poisoned for i, _ in rejected),
        rejected_poisoned=len(poison),
        abstained=sum(verdict is not None and verdict.abstained for _, verdict in pairs),
        example=poison[0] if poison else None,
    )
