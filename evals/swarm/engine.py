"""The round loop: generate, exchange, guard, reward, update.

Every honest node guards, rewards and updates by itself. Nodes that hold the same weights do the
same, so they are one `Member` and computed once; a guard that does not look at weights is shared
by all members and asked once a round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grpo_guard.completion import Completion
from grpo_guard.evals.attacks.adversary import Adversary, adversary_of
from grpo_guard.evals.attacks.base import Attack
from grpo_guard.evals.swarm.config import SwarmConfig
from grpo_guard.evals.swarm.empty_slots import with_empty_slots
from grpo_guard.evals.swarm.exchange import Exchange
from grpo_guard.evals.swarm.grpo import KLTerm, Weighted, accumulate, advantages
from grpo_guard.evals.swarm.members import GuardFn, Member, NodeGuard, Peer, assigned, node_guard
from grpo_guard.evals.swarm.record import Round, Submitted, record
from grpo_guard.evals.tasks.base import Task
from grpo_guard.guard import Review
from grpo_guard.logprob.coin import PublicCoin
from grpo_guard.verdict import Verdict

__all__ = ["GuardFn", "Round", "Submitted", "Swarm"]

Spans = tuple[tuple[int, int], ...]
GuardOf = Callable[[Peer], NodeGuard]
"""Makes the guard of the nodes that start from a peer, on the very model that is trained."""


class Swarm:
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
        if config.malicious and attack is None:
            raise ValueError(f"attack: expected one, since {config.malicious} nodes are malicious")
        if coin is not None and config.models != "homogeneous":
            raise ValueError(
                "coin: expected a homogeneous swarm, whose nodes can replay each other"
            )
        self.model, self.tokenizer, self.task, self.config = model, tokenizer, task, config
        self.attack = adversary_of(attack) if attack is not None else None
        shared = node_guard(guard)
        peers = (Peer(model, tokenizer), *others)
        self.members = [
            Member(peer, nodes, config, guard_of(peer) if guard_of else shared)
            for peer, nodes in assigned(peers, config.honest_nodes, config)
        ]
        attacking = self.attack if config.malicious else None
        self.exchange = Exchange(self.members, task, config, attacking, coin)
        vocabularies = [member.tokenizer.get_vocab() for member in self.members]
        self._same_ids = all(found == vocabularies[0] for found in vocabularies)

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
        guard_started = time.perf_counter()
        reviews = self._reviews(iteration, submitted, asked)
        guard_seconds = time.perf_counter() - guard_started
        norms = [
            self._update(member, iteration, submitted, review)
            for member, review in zip(self.members, reviews, strict=True)
        ]
        first, guard = reviews[0], self.members[0].guard
        return record(
            iteration, submitted, first.verdicts if first else None,
            asr=asr, grad_norm=max(norms), guard_seconds=guard_seconds,
            rejected_by=tuple(_refused(review, submitted) for review in reviews if review),
            excluded=guard.excluded() if guard else (),
            seconds=time.perf_counter() - started,
        )  # fmt: skip

    def state(self) -> dict[str, Any]:
        """Everything that a run needs to go on after a round: tensors and plain values."""
        return {
            "members": [
                {"model": m.model.state_dict(), "optimizer": m.optimizer.state_dict()}
                for m in self.members
            ],
            "guards": [guard.state() for guard in self._guards()],
            "memory": self.exchange.memory,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take up what `state` gave, on a swarm that was made in the same way."""
        for member, kept in zip(self.members, state["members"], strict=True):
            member.model.load_state_dict(kept["model"])
            member.optimizer.load_state_dict(kept["optimizer"])
        for guard, kept in zip(self._guards(), state["guards"], strict=True):
            guard.restore(kept)
        self.exchange.memory.update(state["memory"])

    def _guards(self) -> list[NodeGuard]:
        """The distinct guards, in the members' order."""
        found = {id(member.guard): member.guard for member in self.members if member.guard}
        return list(found.values())

    def _asr(self, submitted: Sequence[Submitted], iteration: int) -> float:
        if self.attack is None:
            return 0.0
        texts = [item.completion.text for item in submitted if not item.malicious]
        self.attack.observe(texts, self.exchange.memory)
        # As many probes as completions, so that both rates have the same denominator.
        each = len(texts) // self.config.prompts
        probes = self.attack.probes(self.task, self.config.prompts)
        if probes is not None:
            texts = self.exchange.probe(probes, each, iteration)
        return sum(map(self.attack.success, texts)) / len(texts)

    def _reviews(
        self, iteration: int, submitted: Sequence[Submitted], asked: Sequence[str]
    ) -> list[Review | None]:
        done: dict[int, Review] = {}
        found: list[Review | None] = []
        for member in self.members:
            guard = member.guard
            if guard is None:
                found.append(None)
                continue
            if id(guard) not in done:
                sent = [item for item in submitted if not item.withheld]
                batch = [self._as_seen(item.completion, member) for item in sent]
                guard.begin(iteration, asked)
                with torch.no_grad():
                    review = guard.review(batch)
                if len(review.verdicts) != len(sent):
                    raise ValueError(
                        f"guard: expected {len(sent)} verdicts, got {len(review.verdicts)}"
                    )
                done[id(guard)] = with_empty_slots(review, submitted)
            found.append(done[id(guard)])
        return found

    def _as_seen(self, completion: Completion, member: Member) -> Completion:
        """With the member's own token ids; nodes with other tokenizers exchange text."""
        if self._same_ids or completion.node in {f"node-{node}" for node in member.nodes}:
            return completion
        tokenizer = member.tokenizer
        prompt = tokenizer.encode(completion.prompt, add_special_tokens=False)
        text = tokenizer.encode(completion.text, add_special_tokens=False)
        return replace(
            completion, prompt_ids=tuple(prompt), sampler_logprobs=None,
            completion_ids=(*text, int(tokenizer.eos_token_id)),
        )  # fmt: skip

    def _update(
        self,
        member: Member,
        iteration: int,
        submitted: Sequence[Submitted],
        review: Review | None,
    ) -> float:
        config = self.config
        rewards = torch.tensor([item.reward for item in submitted])
        kept = torch.tensor([not item.withheld for item in submitted])
        masked: list[Spans] = [()] * len(submitted)
        if review is not None:
            if config.mask_spans:
                masked = [_spans(verdict) for verdict in review.verdicts]
            rejected = torch.tensor(
                [v.rejected and not m for v, m in zip(review.verdicts, masked, strict=True)]
            )
            rewards[rejected] = 0.0
            if review.length_factors is not None:
                rewards *= torch.tensor(review.length_factors)
            # No verdict is neither a reward nor a punishment: an abstention leaves the group.
            kept &= ~torch.tensor([verdict.abstained for verdict in review.verdicts])
            if config.on_reject == "drop":
                kept &= ~rejected
        shape = (config.prompts, config.group_size)
        scores = advantages(rewards.view(shape), kept.view(shape)).flatten().tolist()
        batch = []
        for item, score, keep, spans in zip(submitted, scores, kept.tolist(), masked, strict=True):
            if keep:
                seen = self._as_seen(item.completion, member)
                ids = seen.completion_ids or ()
                batch.append(Weighted(seen.prompt_ids or (), ids, score, spans))
        member.optimizer.zero_grad(set_to_none=True)
        kl = KLTerm(member.reference, config.kl_beta) if member.reference is not None else None
        accumulate(member.model, batch, config.micro_batch, kl, cap_below=config.cap_below)
        norm = torch.nn.utils.clip_grad_norm_(member.model.parameters(), config.max_grad_norm)
        for group in member.optimizer.param_groups:
            group["lr"] = config.lr_at(iteration)
        member.optimizer.step()
        return float(norm)


def _spans(verdict: Verdict) -> Spans:
    """The tokens that a rejection names; none where it names none, or nothing was rejected."""
    if not verdict.rejected:
        return ()
    return tuple(found.token_span for found in verdict.findings if found.token_span is not None)


def _refused(review: Review, submitted: Sequence[Submitted]) -> int:
    """How many honest completions a review rejects."""
    pairs = zip(review.verdicts, submitted, strict=True)
    return sum(verdict.rejected and not item.malicious for verdict, item in pairs)
