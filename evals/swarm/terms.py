"""What all nodes of a swarm have agreed on, and what follows from it for each node and round.

Every draw is seeded by the run, the round and the drawer, never by earlier draws, so that nodes can
compute anywhere and in any order.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from grpo_guard.core.completion import Completion
from grpo_guard.evals.attacks.adversary import Forged
from grpo_guard.evals.swarm.config import SwarmConfig
from grpo_guard.evals.swarm.generate import Sampled
from grpo_guard.evals.swarm.record import Submitted
from grpo_guard.evals.tasks.base import Problem, Task
from grpo_guard.logprob.coin import PublicCoin


@dataclass(frozen=True, slots=True)
class Terms:
    """Settings, task and, if any, the coin that honest nodes sample under."""

    config: SwarmConfig
    task: Task
    coin: PublicCoin | None = None

    def rng(self, iteration: int, who: str) -> random.Random:
        """Return the random generator that one drawer uses to make choices in one round."""
        return random.Random(f"{self.config.seed}-{iteration}-{who}")

    def generator(self, iteration: int, who: str) -> torch.Generator:
        """Return the torch generator that one drawer uses to sample in one round."""
        return torch.Generator().manual_seed(self.rng(iteration, who).getrandbits(63))

    def problems(self, iteration: int) -> list[Problem]:
        """Return the problems that honest nodes answer in a round, node by node."""
        config = self.config
        rng = random.Random(f"{config.seed}-{iteration}")
        vertical = config.setting == "vertical"
        count = config.own_prompts * config.honest_nodes if vertical else config.prompts
        problems = [self.task.sample(rng) for _ in range(count)]
        if self.coin is None:
            return problems
        # With a coin, a slot belongs to its prompt, so the same prompt cannot be asked twice.
        unique = {problem.prompt: problem for problem in problems}
        while len(unique) < count:
            problem = self.task.sample(rng)
            unique[problem.prompt] = problem
        return list(unique.values())

    def assigned(self, iteration: int, problems: Sequence[Problem]) -> list[Problem]:
        """Return the malicious nodes' problems; empty without a coin or if not vertical."""
        config = self.config
        if self.coin is None or config.setting != "vertical":
            return []
        # A separate generator, so that the draws of honest nodes do not depend on these.
        rng = self.rng(iteration, "assigned")
        taken = {problem.prompt for problem in problems}
        found: list[Problem] = []
        while len(found) < config.own_prompts * config.malicious:
            problem = self.task.sample(rng)
            if problem.prompt not in taken:
                taken.add(problem.prompt)
                found.append(problem)
        return found

    def share(self, node: int) -> tuple[range, range]:
        """Return (groups that an honest node answers, its slots in each of them)."""
        config, each = self.config, self.config.per_node
        if config.setting == "vertical":
            own = config.own_prompts
            return range(node * own, (node + 1) * own), range(each)
        return range(config.prompts), range(node * each, (node + 1) * each)

    def node(self, group: int, slot: int) -> str:
        """Return the node that answers a given slot in a group."""
        if self.config.setting == "vertical":
            return f"node-{group // self.config.own_prompts}"
        return f"node-{slot // self.config.per_node}"

    def seeds(
        self, iteration: int, node: str, prompts: Sequence[str], slots: Sequence[int]
    ) -> list[int] | None:
        """Return the coin's seeds for a node's slots under each prompt; None without a coin."""
        if self.coin is None:
            return None
        each = self.config.per_node
        return [
            self.coin.seed(round=iteration, node=node, slot=slot % each, prompt=prompt)
            for prompt in prompts
            for slot in slots
        ]

    def submitted(
        self,
        iteration: int,
        problem: Problem,
        one: Sampled,
        place: tuple[int, int],
        finish: str | None = None,
        forged: Forged | None = None,
    ) -> Submitted:
        """Build the completion that reaches the exchange at ``place``, its (group, slot).

        ``forged`` is given for malicious senders.
        """
        claims = forged or Forged(one.text)
        group, slot = place
        completion = Completion(
            prompt=problem.prompt, text=one.text, prompt_ids=one.prompt_ids,
            completion_ids=one.ids, node=self.node(group, slot), group=group, round=iteration,
            # With a coin, slots are counted per node, because each node owes its share of every
            # group.
            slot=slot if self.coin is None else slot % self.config.per_node,
            reference=problem.answer, task=self.task.name, sampler_logprobs=claims.logprobs,
            finish_reason=finish,
        )  # fmt: skip
        completion = self.sent(completion, claims.node or completion.node)
        reward = self.task.reward(completion.text, problem.answer)
        span = None if claims.withheld else claims.span
        malicious = forged is not None
        return Submitted(completion, span is not None, span, reward, malicious, claims.withheld)

    def sent(self, completion: Completion, name: str | None) -> Completion:
        """Return the completion under the name it is sent under, which can be another node's."""
        return replace(completion, node=name)
