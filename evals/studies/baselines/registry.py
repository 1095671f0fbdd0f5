"""The baselines and partial stacks that the results pages compare stacks with, by name."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from hashlib import sha256
from typing import Final

import torch
from torch import Tensor

from grpo_guard.content.arithmetic.verifier import ArithmeticVerifier
from grpo_guard.content.code.verifier import CodeVerifier
from grpo_guard.content.recurrence.verifier import RecurrenceVerifier
from grpo_guard.content.screens.verifier import ScreensVerifier
from grpo_guard.core.completion import Completion
from grpo_guard.core.ensemble import AllOf
from grpo_guard.core.prompts import Message
from grpo_guard.core.verdict import Verdict, accept, reject
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.evals.defences.base import Defence, Ground, counting
from grpo_guard.evals.defences.paper import PaperLogitVerifier
from grpo_guard.evals.defences.registry import (
    by_verifier,
    heterogeneous,
    homogeneous,
    of_weights,
    replay,
    same_weights,
)
from grpo_guard.evals.studies.baselines.spans import TokenSpanGuard
from grpo_guard.evals.swarm.config import SwarmConfig
from grpo_guard.evals.swarm.honest import Member, Spans
from grpo_guard.evals.swarm.members import Peer, VerifierGuard
from grpo_guard.evals.swarm.terms import Terms
from grpo_guard.evals.tasks.base import Task
from grpo_guard.evals.tasks.registry import WORD_PROBLEMS
from grpo_guard.guard.references import References
from grpo_guard.guard.spot_checks import SpotCheck
from grpo_guard.judge.verifier import JudgeVerifier
from grpo_guard.logprob.replay.verifier import SeedReplayVerifier
from grpo_guard.nodes.identity.envelope import signed
from grpo_guard.nodes.identity.gate import Identity
from grpo_guard.nodes.identity.keys import SigningKey
from grpo_guard.nodes.identity.ring import KeyRing

_SENTENCE: Final = re.compile(r"[^.?]{1,200}[.?]")
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
# Honest tokens from a policy that samples from its top 50 are seldom less likely than this.
_IMPROBABLE: Final = 0.02
_LESS: Final = ("gives away", "loses", "sells", "takes", "are gone")


class WholeRounds(CompletionVerifier):
    """Rejects all of a node's completions in any round where the node left slots empty.

    A node that sends only what suits it chooses what gets trained on. This verifier leaves a node
    only all or nothing per round. An honest node that loses a message loses the whole round.

    Args:
        owed: Number of completions each node must send per round, all of them in one batch.
    """

    name = "whole_rounds"

    def __init__(self, owed: int) -> None:
        if owed < 1:
            raise ValueError(f"whole_rounds.owed: expected at least 1, got {owed}")
        self.owed = owed

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        sent = Counter(completion.node for completion in batch)
        return [self._verdict(sent[completion.node]) for completion in batch]

    def _verdict(self, sent: int) -> Verdict:
        if sent >= self.owed:
            return accept(self.name)
        return reject(self.name, message=f"{sent} completions of the {self.owed} that are owed")


class OfTask(References):
    """Reference answers to a task's problems, by prompt; only word problems have references."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self._known = task.name == WORD_PROBLEMS

    def of(self, prompt: str | Sequence[Message]) -> str | None:
        """Compute the answer from a word problem's sentences."""
        if not self._known or not isinstance(prompt, str):
            return None
        total: int | None = None
        for sentence in _SENTENCE.findall(prompt.removeprefix("Q:")):
            numbers = [int(digits) for digits in _NUMBER.findall(sentence)]
            if total is None:
                total = numbers[0] * (numbers[1] if len(numbers) > 1 else 1) if numbers else None
            elif numbers:
                less = any(words in sentence for words in _LESS)
                total += -numbers[0] if less else numbers[0]
        return None if total is None else str(total)


def shipped(ground: Ground) -> JudgeVerifier:
    """Build the shipped judge.

    Raises:
        ValueError: the judge does not know this task and would reject everything.
    """
    if ground.task.name != WORD_PROBLEMS:
        raise ValueError(
            f"shipped_judge: expected the task {WORD_PROBLEMS!r}, the only one that it was "
            f"trained on, got {ground.task.name!r}"
        )
    return JudgeVerifier()


class MaskSpans(Member):
    """A rejected completion whose verdict names tokens keeps its reward, but not those tokens.

    Other rejected completions are treated according to ``on_reject``.
    """

    def left_out(self, verdict: Verdict) -> Spans:
        """Return the token spans that a rejection names, if any."""
        if not verdict.rejected:
            return ()
        return tuple(found.token_span for found in verdict.findings if found.token_span is not None)


class CapImprobable(Member):
    """Scales down positive updates of tokens that the local policy finds improbable."""

    def reweighed(self, weight: Tensor, logprobs: Tensor) -> Tensor:
        """Multiply positive weights by probability / 0.02 if that is below 1."""
        return capped(weight, logprobs, _IMPROBABLE)


def capped(weight: Tensor, logprobs: Tensor, below: float) -> Tensor:
    """Multiply positive weights by probability / ``below`` if that is below 1."""
    factor = (logprobs.exp() / below).clamp(max=1.0)
    return torch.where(weight > 0, weight * factor, weight)


class SignedTerms(Terms):
    """Terms of a swarm where every completion sent is signed."""

    def sent(self, completion: Completion, name: str | None) -> Completion:
        """Sign a completion with its sender's key, even if it is sent under another node's name."""
        key, run = node_key(self.config, completion.node or ""), run_name(self.config)
        if self.coin is None:  # the same problem can be asked twice in a round
            group, slot = int(completion.group or 0), int(completion.slot or 0)
            completion = replace(completion, slot=group * self.config.group_size + slot)
        return signed(replace(completion, node=name), key, run=run)


def run_name(config: SwarmConfig) -> str:
    """Return the run's name, which nodes include in what they sign."""
    return f"swarm-{config.seed}"


def node_key(config: SwarmConfig, node: str) -> SigningKey:
    """Return a node's key, the same in every process."""
    return _key(f"{run_name(config)} {node}")


@lru_cache(maxsize=1024)
def _key(seed: str) -> SigningKey:
    return SigningKey(sha256(seed.encode()).digest())


class OwnPrompts(VerifierGuard):
    """Seed replay while nodes choose their own problems, as a baseline against seed grinding."""

    def begin(self, round: int, prompts: Sequence[str]) -> None:
        """Begin a round, but pass on only its number."""
        for part in self._parts:
            if isinstance(part, SeedReplayVerifier):
                part.begin_round(round)


def _whole_rounds(peer: Peer, ground: Ground) -> VerifierGuard:
    """Build the homogeneous stack so that it accepts all of a node's round or none of it."""
    config = ground.config
    owed = config.prompts * config.group_size // config.nodes
    return homogeneous(peer, ground, WholeRounds(owed))


def _content_spans(peer: Peer, ground: Ground) -> VerifierGuard:
    """Build a guard from the content verifiers that locate their findings; only the spans pay."""
    verifier = AllOf(
        ScreensVerifier(), ArithmeticVerifier(), CodeVerifier(), RecurrenceVerifier(),
        name="mask_content_span",
    )  # fmt: skip
    return TokenSpanGuard(counting(verifier, peer.tokenizer), peer.tokenizer)


def _heterogeneous_signed(peer: Peer, ground: Ground) -> VerifierGuard:
    """Build the heterogeneous stack with signatures and the task's own reference answers."""
    guard = heterogeneous(peer, ground)
    config = ground.config
    known = {name: node_key(config, name).public for name in config.node_names}
    guard.guard.identity = Identity(KeyRing(known), run=run_name(config))
    guard.guard.references = OfTask(ground.task)
    return guard


def _spot_checks(peer: Peer, ground: Ground, *, percent: int) -> SpotCheck:
    """Build `same_weights` so that it checks a share of each node's completions.

    Newcomers are checked no more often than others: the share is constant until a node is caught.
    """
    share = percent / 100
    whole = same_weights(peer, ground).guard.verifier
    return SpotCheck(whole, share=share, newcomers=share, key=ground.key)


def _authors_logit(peer: Peer, ground: Ground, *, k: int) -> PaperLogitVerifier:
    """Build the logit check of the paper's own code: top 100 in 2025, later top 60."""
    return PaperLogitVerifier(peer.model, k=k)


DEFENCES: Final = (
    Defence("cap_improbable", member=CapImprobable),
    Defence("mask_span", by_verifier(partial(of_weights, "logprob_bound")), member=MaskSpans),
    Defence("mask_content_span", _content_spans, member=MaskSpans),
    Defence("shipped_judge", by_verifier(lambda peer, ground: shipped(ground))),
    *(Defence(f"authors_logit_{k}", by_verifier(partial(_authors_logit, k=k))) for k in (100, 60)),
    *(
        Defence(f"spot_checks_{percent}", by_verifier(partial(_spot_checks, percent=percent)))
        for percent in (5, 10, 25, 50, 100)
    ),
    Defence("own_prompts", by_verifier(replay, OwnPrompts), coin=True),
    Defence("whole_rounds", _whole_rounds, coin=True),
    Defence("heterogeneous_signed", _heterogeneous_signed, terms=SignedTerms),
)
