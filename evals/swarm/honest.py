"""An honest node's round: sample the node's share, apply the guard and update the model."""

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Cause, Verdict, abstain
from grpo_guard.evals.attacks.adversary import closed
from grpo_guard.evals.swarm.grpo import KLTerm, Weighted, accumulate, advantages
from grpo_guard.evals.swarm.members import GuardIn, Peer, VerifierGuard
from grpo_guard.evals.swarm.optimiser import adam
from grpo_guard.evals.swarm.record import Submitted
from grpo_guard.evals.swarm.terms import Terms
from grpo_guard.evals.tasks.base import Problem
from grpo_guard.guard.policy import Policy
from grpo_guard.guard.review import Review
from grpo_guard.guard.settlement import Ruling, ruling_of, settle

Spans = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Learned:
    """The result of a member's review and update.

    ``verdicts`` are present only if requested, and ``rejected``, the number of rejected honest
    completions, only with a guard. ``grad_norm`` is the norm before clipping.
    """

    verdicts: list[Verdict] | None
    rejected: int | None
    excluded: tuple[str, ...]
    grad_norm: float
    guard_seconds: float


class Member:
    """Honest nodes with the same weights: a single model, guarded and updated once for all of them.

    Each node still samples separately: the composition of a batch affects the last bits of its
    logits, and a node must draw the same samples whether it is computed alone or not.

    Args:
        peer: The policy to start from; its model is trained in place.
        folder: Folder for files written by the guard; created if missing.
        same_ids: Whether all nodes of the swarm share a vocabulary, and can therefore exchange
            token ids as well as text.
    """

    def __init__(
        self,
        peer: Peer,
        nodes: Sequence[int],
        terms: Terms,
        guard_in: GuardIn | None = None,
        folder: Path = Path(),
        *,
        same_ids: bool = True,
    ) -> None:
        config = terms.config
        self.peer, self.model, self.tokenizer = peer, peer.model, peer.tokenizer
        self.nodes, self.terms = tuple(nodes), terms
        self.guard: VerifierGuard | None = None
        if guard_in is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self.guard = guard_in(peer, folder)
        self.optimizer = adam(
            peer.model.parameters(), lr=config.lr, betas=config.betas, eps=config.eps
        )
        self.reference: PreTrainedModel | None = None
        if config.kl_beta:
            self.reference = copy.deepcopy(peer.model).requires_grad_(False)
        self._same_ids = same_ids

    def ready(self, threads: int) -> bool:
        """Set this process's thread count, because a different count can change the last bits."""
        torch.set_num_threads(threads)
        return True

    def policy(self) -> PreTrainedModel:
        """Return the current model."""
        return self.model

    def weights(self) -> dict[str, torch.Tensor]:
        """Return the live weights."""
        return dict(self.model.state_dict())

    def submit(self, iteration: int, problems: Sequence[Problem]) -> list[Submitted]:
        """Return the nodes' answers to the problems of a round, ordered by node, then by group."""
        terms, sent = self.terms, list[Submitted]()
        eos = int(self.tokenizer.eos_token_id)
        for node in self.nodes:
            groups, slots = terms.share(node)
            prompts = [problems[group].prompt for group in groups]
            generator = terms.generator(iteration, f"node-{node}")
            seeds = terms.seeds(iteration, f"node-{node}", prompts, slots)
            drawn = self.peer.draw(terms.config, generator, prompts, len(slots), seeds)
            sent += [
                terms.submitted(
                    iteration, problems[group], one, (group, slot), one.finish_reason(eos)
                )
                for group, row in zip(groups, drawn, strict=True)
                for slot, one in zip(slots, row, strict=True)
            ]
        return sent

    def probe(self, iteration: int, problems: Sequence[Problem], each: int) -> list[str]:
        """Sample ``each`` completions for each of the held-out problems that fall to these nodes.

        Honest nodes split the problems among themselves, and no node learns from these completions.
        """
        texts: list[str] = []
        for node in self.nodes:
            own = [problem.prompt for problem in problems[node :: self.terms.config.honest_nodes]]
            if own:
                generator = self.terms.generator(iteration, f"{node}-probe")
                rows = self.peer.draw(self.terms.config, generator, own, each)
                texts += [one.text for row in rows for one in row]
        return texts

    def learn(
        self, iteration: int, asked: Sequence[str], submitted: Sequence[Submitted], verdicts: bool
    ) -> Learned:
        """Review the round and update; include the verdicts in the result if ``verdicts``."""
        started = time.perf_counter()
        review = self.review(iteration, asked, submitted)
        seconds = time.perf_counter() - started
        return Learned(
            verdicts=review.verdicts if review is not None and verdicts else None,
            rejected=None if review is None else _refused(review.verdicts, submitted),
            excluded=() if self.guard is None else self.guard.excluded(),
            grad_norm=self.update(iteration, submitted, review),
            guard_seconds=seconds,
        )

    def review(
        self, iteration: int, asked: Sequence[str], submitted: Sequence[Submitted]
    ) -> Review | None:
        """Review the round with the guard; None without a guard, or before it is switched on."""
        if self.guard is None or iteration < self.terms.config.guard_from:
            return None
        sent = [item for item in submitted if not item.withheld]
        batch = [self._as_seen(item.completion) for item in sent]
        self.guard.begin(iteration, asked)
        with torch.no_grad():
            review = self.guard.review(batch)
        if len(review.verdicts) != len(sent):
            raise ValueError(f"guard: expected {len(sent)} verdicts, got {len(review.verdicts)}")
        return _with_empty_slots(review, submitted)

    def update(
        self, iteration: int, submitted: Sequence[Submitted], review: Review | None
    ) -> float:
        """Take one step on everything submitted; return the gradient's norm before clipping."""
        config = self.terms.config
        batch = self._weighted(submitted, review)
        self.optimizer.zero_grad(set_to_none=True)
        kl = KLTerm(self.reference, config.kl_beta) if self.reference is not None else None
        accumulate(
            self.model, batch, config.micro_batch, kl, reweighed=self.reweighed,
            share_prompts=config.share_prompts,
        )  # fmt: skip
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.max_grad_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = config.lr_at(iteration)
        self.optimizer.step()
        return float(norm)

    # Hooks for other ways to learn.

    def left_out(self, verdict: Verdict) -> Spans:
        """Return the token spans to leave out of a completion; if (), the verdict applies."""
        return ()

    def reweighed(self, weight: torch.Tensor, logprobs: torch.Tensor) -> torch.Tensor:
        """Return the token weights to use; see `grpo.Reweighed`."""
        return weight

    def state(self) -> dict[str, Any]:
        """Return the weights, the optimiser's state and the guard's memory."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "guard": {} if self.guard is None else self.guard.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.guard is not None:
            self.guard.restore(state["guard"])

    def _weighted(self, submitted: Sequence[Submitted], review: Review | None) -> list[Weighted]:
        """Return the completions that count toward the update, with their advantages."""
        config = self.terms.config
        masked: list[Spans] = [()] * len(submitted)
        rulings = [Ruling.ACCEPTED] * len(submitted)
        if review is not None:
            masked = [self.left_out(verdict) for verdict in review.verdicts]
            rulings = [
                Ruling.ACCEPTED if spans else ruling_of(verdict)
                for verdict, spans in zip(review.verdicts, masked, strict=True)
            ]
        settled = settle(
            [[None if item.withheld else item.reward] for item in submitted],
            rulings,
            Policy(on_reject=config.on_reject, on_abstain="skip"),
            groups=[place // config.group_size for place in range(len(submitted))],
            length_factors=None if review is None else review.length_factors,
        )
        kept = torch.tensor([
            stays and not item.withheld
            for stays, item in zip(settled.kept, submitted, strict=True)
        ])  # fmt: skip
        rewards = torch.tensor([reward or 0.0 for (reward,) in settled.rewards])
        shape = (config.prompts, config.group_size)
        by_group = advantages(
            rewards.view(shape), kept.view(shape), scaled=config.advantage == "standard"
        )
        scores = by_group.flatten().tolist()
        batch = []
        for item, score, keep, spans in zip(submitted, scores, kept.tolist(), masked, strict=True):
            if keep:
                seen = self._as_seen(item.completion)
                ids = seen.completion_ids or ()
                batch.append(Weighted(seen.prompt_ids or (), ids, score, spans))
        return batch

    def _as_seen(self, completion: Completion) -> Completion:
        """Encode a completion as the member's own tokens if nodes can exchange only text."""
        if self._same_ids or completion.node in {f"node-{node}" for node in self.nodes}:
            return completion
        prompt = self.tokenizer.encode(completion.prompt, add_special_tokens=False)
        ids = closed(self.tokenizer, completion.text)
        return replace(
            completion, prompt_ids=tuple(prompt), completion_ids=ids, sampler_logprobs=None
        )


def _with_empty_slots(review: Review, submitted: Sequence[Submitted]) -> Review:
    """Extend a review of sent completions to all slots.

    Slots left empty by a node get no verdict and are left out of the update.
    """
    if not any(item.withheld for item in submitted):
        return review
    nothing = [item.completion for item in submitted if item.withheld]
    empty = abstain("exchange", Cause.NOT_APPLICABLE, "nothing was sent")
    both = Review.joined([review, Review.of(nothing, [empty] * len(nothing), {})])
    sent = iter(range(len(review.verdicts)))
    left_empty = iter(range(len(review.verdicts), len(both.verdicts)))
    order = [next(left_empty if item.withheld else sent) for item in submitted]
    return replace(both.at(order), metrics=review.metrics)


def _refused(verdicts: Sequence[Verdict], submitted: Sequence[Submitted]) -> int:
    """Count the honest completions rejected by the verdicts."""
    pairs = zip(verdicts, submitted, strict=True)
    return sum(verdict.rejected and not item.malicious for verdict, item in pairs)
