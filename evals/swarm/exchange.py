"""The generation phase: what all nodes put into the exchange, group by group."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

from grpo_guard.completion import Completion
from grpo_guard.evals.attacks.adversary import Adversary, Forged, View
from grpo_guard.evals.swarm.config import SwarmConfig
from grpo_guard.evals.swarm.generate import Sampled, sample
from grpo_guard.evals.swarm.members import Member
from grpo_guard.evals.swarm.record import Submitted
from grpo_guard.evals.tasks.base import Problem, Task
from grpo_guard.logprob.coin import PublicCoin

_SAMPLED_AT_ONCE = 512
"""Rows of one batch when an attacker draws many; bounds memory only."""


class Exchange:
    """Lets every node generate.

    Args:
        members: Models of the honest nodes.
        task: Problems and reward.
        config: Of the swarm.
        adversary: The malicious nodes; None where there are none.
        coin: Where honest nodes sample under one.
    """

    def __init__(
        self,
        members: Sequence[Member],
        task: Task,
        config: SwarmConfig,
        adversary: Adversary | None,
        coin: PublicCoin | None,
    ) -> None:
        self.members, self.task, self.config = members, task, config
        self.adversary, self.coin = adversary, coin
        self.memory: dict[str, Any] = {}
        self._first = copy.deepcopy(members[0].model) if adversary is not None else None

    def play(self, iteration: int) -> tuple[list[Submitted], list[str]]:
        """(completions group by group, prompts that the round asks).

        Vertical: under a coin the prompts of all nodes, in their order, else of honest ones.
        """
        config = self.config
        rng = random.Random(f"{config.seed}-{iteration}")
        vertical = config.setting == "vertical"
        count = config.own_prompts * config.honest_nodes if vertical else config.prompts
        problems = self._problems(rng, count)
        rows: list[list[Submitted]] = [[] for _ in problems]
        for member in self.members:
            # Honest nodes stand before the malicious ones, and so do their groups.
            generator = torch.Generator().manual_seed(rng.getrandbits(63))
            for group, slot, one in self._sampled(member, problems, iteration, generator):
                honest = self._completion(problems[group], one, iteration, group, slot)
                rows[group].append(self._submitted(honest, problems[group], None, malicious=False))
        assigned = self._assigned(iteration, problems)
        if config.malicious:
            rows = self._poisoned(iteration, problems, rows, rng, assigned)
        asked = [problem.prompt for problem in (*problems, *assigned)]
        return [one for row in rows for one in row], asked

    def probe(self, problems: Sequence[Problem], per_problem: int, iteration: int) -> list[str]:
        """Completions of held-out problems, honest nodes taking turns; nobody learns of them."""
        texts: list[str] = []
        for number, member in enumerate(self.members):
            own = problems[number :: len(self.members)]
            if own:
                name = f"{self.config.seed}-{iteration}-{number}-probe"
                seed = random.Random(name).getrandbits(63)
                draw = self._sampler(member.model, member, torch.Generator().manual_seed(seed))
                texts += [
                    one.text for row in draw([p.prompt for p in own], per_problem) for one in row
                ]
        return texts

    def _problems(self, rng: random.Random, count: int) -> list[Problem]:
        problems = [self.task.sample(rng) for _ in range(count)]
        if self.coin is None:
            return problems
        # Under a coin a slot belongs to its prompt, so the same prompt cannot be asked twice.
        unique = {problem.prompt: problem for problem in problems}
        while len(unique) < count:
            problem = self.task.sample(rng)
            unique[problem.prompt] = problem
        return list(unique.values())

    def _assigned(self, iteration: int, problems: Sequence[Problem]) -> list[Problem]:
        """Under a coin, vertical: the problems that are the malicious nodes' to answer."""
        config = self.config
        if self.coin is None or config.setting != "vertical":
            return []
        # A generator of its own: honest nodes draw the same with and without.
        rng = random.Random(f"{config.seed}-{iteration}-assigned")
        taken = {problem.prompt for problem in problems}
        found: list[Problem] = []
        while len(found) < config.own_prompts * config.malicious:
            problem = self.task.sample(rng)
            if problem.prompt not in taken:
                taken.add(problem.prompt)
                found.append(problem)
        return found

    def _sampled(
        self,
        member: Member,
        problems: Sequence[Problem],
        iteration: int,
        generator: torch.Generator,
    ) -> list[tuple[int, int, Sampled]]:
        """(group, slot, completion) of all nodes of a member, group by group."""
        config, each = self.config, self.config.per_node
        if config.setting == "vertical":
            own = config.own_prompts
            groups = [n * own + k for n in member.nodes for k in range(own)]
            slots = [list(range(each)) for _ in groups]
        else:
            groups = list(range(len(problems)))
            slots = [[n * each + k for n in member.nodes for k in range(each)] for _ in groups]
        seeds = None
        if self.coin is not None:
            seeds = [
                self.coin.seed(
                    round=iteration,
                    node=self._node(group, slot),
                    slot=slot % each,
                    prompt=problems[group].prompt,
                )
                for group, row in zip(groups, slots, strict=True)
                for slot in row
            ]
        drawn = sample(
            member.model, member.tokenizer, [problems[g].prompt for g in groups], len(slots[0]),
            generator=generator, temperature=member.temperature, top_k=config.top_k,
            max_new_tokens=config.max_new_tokens, seeds=seeds,
        )  # fmt: skip
        places = [(g, slot) for g, row in zip(groups, slots, strict=True) for slot in row]
        return [(*place, one) for place, one in zip(places, drawn, strict=True)]

    def _poisoned(
        self,
        iteration: int,
        problems: list[Problem],
        rows: list[list[Submitted]],
        rng: random.Random,
        assigned: Sequence[Problem],
    ) -> list[list[Submitted]]:
        assert self.adversary is not None
        config = self.config
        view = self._view(iteration, rng)
        view.assigned = assigned
        if config.setting == "vertical":
            own = self.adversary.choose(view, config.own_prompts * config.malicious)
            forged = self.adversary.submit(view, own, config.group_size)
            start = len(rows)
            rows = [*rows, *([] for _ in own)]
            asked, first = own, 0
        else:
            slots = config.malicious * config.per_node
            forged = self.adversary.submit(view, problems, slots)
            start, asked, first = 0, problems, config.honest_nodes * config.per_node
        for number, (problem, row) in enumerate(zip(asked, forged, strict=True)):
            for slot, one in enumerate(row, first):
                sent = self._forged(problem, one, iteration, start + number, slot)
                rows[start + number].append(sent)
        return rows

    def _forged(
        self, problem: Problem, one: Forged, iteration: int, group: int, slot: int
    ) -> Submitted:
        tokenizer = self.members[0].tokenizer
        ids = one.ids
        if ids is None:
            encoded = tokenizer.encode(one.text, add_special_tokens=False)
            ids = (*encoded, int(tokenizer.eos_token_id))
        prompt_ids = tuple(tokenizer.encode(problem.prompt, add_special_tokens=False))
        sampled = Sampled(group, prompt_ids, ids, one.text)
        completion = self._completion(problem, sampled, iteration, group, slot, one.logprobs)
        if one.withheld:
            reward = self.task.reward(one.text, problem.answer)
            return Submitted(completion, False, None, reward, malicious=True, withheld=True)
        return self._submitted(completion, problem, one.span, malicious=True)

    def _view(self, iteration: int, rng: random.Random) -> View:
        member = self.members[0]
        assert self._first is not None
        generator = torch.Generator().manual_seed(
            random.Random(f"{self.config.seed}-{iteration}-adversary").getrandbits(63)
        )
        return View(
            config=self.config, task=self.task, iteration=iteration, rng=rng,
            model=member.model, tokenizer=member.tokenizer,
            draw=self._sampler(member.model, member, generator),
            stale=self._sampler(self._first, member, generator),
            memory=self.memory, coin=self.coin,
            forced=None if self.coin is None else self._forced(member, iteration),
        )  # fmt: skip

    def _forced(
        self, member: Member, iteration: int
    ) -> Callable[[Sequence[str], str], list[list[Sampled]]]:
        """What the coin leads to in the slots of a node, whatever it asks."""
        config, each, coin = self.config, self.config.per_node, self.coin
        assert coin is not None

        def forced(prompts: Sequence[str], node: str) -> list[list[Sampled]]:
            rows: list[list[Sampled]] = []
            step = max(1, _SAMPLED_AT_ONCE // each)
            for start in range(0, len(prompts), step):
                part = prompts[start : start + step]
                seeds = [
                    coin.seed(round=iteration, node=node, slot=slot, prompt=prompt)
                    for prompt in part
                    for slot in range(each)
                ]
                drawn = sample(
                    member.model, member.tokenizer, part, each, generator=torch.Generator(),
                    temperature=member.temperature, top_k=config.top_k,
                    max_new_tokens=config.max_new_tokens, seeds=seeds,
                )  # fmt: skip
                rows += [drawn[i * each : (i + 1) * each] for i in range(len(part))]
            return rows

        return forced

    def _sampler(
        self, model: Any, member: Member, generator: torch.Generator
    ) -> Callable[[Sequence[str], int], list[list[Sampled]]]:
        config = self.config

        def draw(prompts: Sequence[str], count: int) -> list[list[Sampled]]:
            rows: list[list[Sampled]] = []
            step = max(1, _SAMPLED_AT_ONCE // max(1, count))
            for start in range(0, len(prompts), step):
                part = prompts[start : start + step]
                drawn = sample(
                    model, member.tokenizer, part, count, generator=generator,
                    temperature=member.temperature, top_k=config.top_k,
                    max_new_tokens=config.max_new_tokens,
                )  # fmt: skip
                rows += [drawn[i * count : (i + 1) * count] for i in range(len(part))]
            return rows

        return draw

    def _node(self, group: int, slot: int) -> str:
        if self.config.setting == "vertical":
            return f"node-{group // self.config.own_prompts}"
        return f"node-{slot // self.config.per_node}"

    def _completion(
        self,
        problem: Problem,
        one: Sampled,
        iteration: int,
        group: int,
        slot: int,
        logprobs: tuple[float, ...] | None = None,
    ) -> Completion:
        return Completion(
            prompt=problem.prompt, text=one.text, prompt_ids=one.prompt_ids,
            completion_ids=one.ids, node=self._node(group, slot), group=group, round=iteration,
            # Under a coin slots are counted by node, since each owes its share of every group.
            slot=slot if self.coin is None else slot % self.config.per_node,
            reference=problem.answer, task=self.task.name, sampler_logprobs=logprobs,
        )  # fmt: skip

    def _submitted(
        self,
        completion: Completion,
        problem: Problem,
        span: tuple[int, int] | None,
        *,
        malicious: bool,
    ) -> Submitted:
        reward = self.task.reward(completion.text, problem.answer)
        return Submitted(completion, span is not None, span, reward, malicious)
