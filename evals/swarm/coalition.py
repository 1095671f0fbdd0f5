"""A swarm's malicious nodes, acting as one with the live weights of node-0."""

import random
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import torch

from grpo_guard.evals.attacks.adversary import Adversary, Forged, View, closed
from grpo_guard.evals.attacks.silent import Silent
from grpo_guard.evals.swarm.generate import Sampled
from grpo_guard.evals.swarm.members import Peer
from grpo_guard.evals.swarm.record import Submitted
from grpo_guard.evals.swarm.terms import Terms
from grpo_guard.evals.tasks.base import Problem, held_out


class Coalition:
    """A swarm's malicious nodes, possibly none; also counts texts that show the attack."""

    def __init__(self, adversary: Adversary, peer: Peer, terms: Terms) -> None:
        self.adversary, self.peer, self.terms = adversary, peer, terms
        self.memory: dict[str, Any] = {}
        if terms.config.malicious:
            adversary.meet(peer)

    def ready(self, threads: int) -> bool:
        """See `Member.ready`."""
        torch.set_num_threads(threads)
        return True

    def submit(
        self,
        iteration: int,
        problems: Sequence[Problem],
        weights: Mapping[str, torch.Tensor] | None = None,
    ) -> list[Submitted]:
        """Return the malicious nodes' share of a round where honest nodes answer ``problems``.

        ``weights`` are node-0's live weights, passed if the peer is only a copy.
        """
        if weights is not None:
            self.peer.model.load_state_dict(weights)
        config = self.terms.config
        view = self.view(iteration)
        left = config.leaves is not None and iteration >= config.leaves
        acting = Silent() if left else self.adversary
        if config.setting == "vertical":
            asked = acting.choose(view, config.own_prompts * config.malicious)
            forged = acting.submit(view, asked, config.group_size)
            # Honest nodes come before the malicious ones, and so do their groups.
            group, slot = len(problems), 0
        else:
            asked = list(problems)
            forged = acting.submit(view, asked, config.malicious * config.per_node)
            group, slot = 0, config.honest_nodes * config.per_node
        return [
            self._sent(iteration, problem, one, (number, place))
            for number, (problem, row) in enumerate(zip(asked, forged, strict=True), group)
            for place, one in enumerate(row, slot)
        ]

    def receive(self, texts: Sequence[str]) -> list[Problem] | None:
        """Receive a round's honest completions; return the problems to measure success on.

        Returns None if success is measured on the completions received.
        """
        self.adversary.observe(texts, self.memory)
        return self._questions

    @cached_property
    def _questions(self) -> list[Problem] | None:
        """Problems to measure success on, the same in every round; None for the round's own."""
        task, config = self.terms.task, self.terms.config
        if config.success_on is None:
            return self.adversary.probes(task, config.prompts)
        count = config.success_on[0]
        rng = random.Random("questions of success")
        return self.adversary.probes(task, count) or [held_out(task, rng) for _ in range(count)]

    def successes(self, texts: Sequence[str]) -> int:
        """Count the texts that show the attack's behaviour."""
        return sum(map(self.adversary.success, texts))

    def state(self) -> dict[str, Any]:
        """Return the adversary's memory as plain values."""
        return self.memory

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        self.memory.update(state)

    def view(self, iteration: int) -> View:
        """Return what the malicious nodes know and can do in a round."""
        terms, peer = self.terms, self.peer
        generator = terms.generator(iteration, "adversary")
        return View(
            terms, peer, iteration, terms.rng(iteration, "choices"),
            draw=partial(peer.draw, terms.config, generator), memory=self.memory,
        )  # fmt: skip

    def _sent(
        self, iteration: int, problem: Problem, one: Forged, place: tuple[int, int]
    ) -> Submitted:
        tokenizer = self.peer.tokenizer
        ids = closed(tokenizer, one.text) if one.ids is None else one.ids
        prompt_ids = tuple(tokenizer.encode(problem.prompt, add_special_tokens=False))
        sent = Sampled(place[0], prompt_ids, ids, one.text)
        finish = sent.finish_reason(int(tokenizer.eos_token_id))
        return self.terms.submitted(iteration, problem, sent, place, finish, one)
