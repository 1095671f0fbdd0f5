"""The baselines and partial stacks that the results pages compare stacks with, by name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Final

from grpo_guard.content.arithmetic.verifier import ArithmeticVerifier
from grpo_guard.content.code.verifier import CodeVerifier
from grpo_guard.content.recurrence.verifier import RecurrenceVerifier
from grpo_guard.content.screens.verifier import ScreensVerifier
from grpo_guard.core.completion import Completion
from grpo_guard.core.ensemble import AllOf
from grpo_guard.core.prompts import Message
from grpo_guard.core.verdict import Verdict, accept, reject
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.evals.defences.base import Defence, Ground, VerifierGuard, counting
from grpo_guard.evals.defences.paper import PaperLogitVerifier
from grpo_guard.evals.defences.registry import (
    by_verifier,
    heterogeneous,
    homogeneous,
    of_weights,
    replay,
    same_weights,
)
from grpo_guard.evals.studies.baselines import learning
from grpo_guard.evals.studies.baselines.signed import SignedTerms, node_key, run_name
from grpo_guard.evals.studies.baselines.spans import TokenSpanGuard
from grpo_guard.evals.swarm.members import NodeGuard, Peer
from grpo_guard.evals.tasks.base import Task
from grpo_guard.evals.tasks.registry import WORD_PROBLEMS
from grpo_guard.guard.references import References
from grpo_guard.guard.spot_checks import SpotCheck
from grpo_guard.judge.verifier import JudgeVerifier
from grpo_guard.logprob.replay.verifier import SeedReplayVerifier
from grpo_guard.nodes.identity.gate import Identity
from grpo_guard.nodes.identity.ring import KeyRing

_SENTENCE: Final = re.compile(r"[^.?]{1,200}[.?]")
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_LESS: Final = ("gives away", "loses", "sells", "takes", "are gone")


class WholeRounds(CompletionVerifier):
    """Rejects all of a node's completions in any round where the node left slots empty.

    A node that sends only what suits it chooses what gets trained on. This verifier leaves a node
    only one choice per round: all or nothing. An honest node that loses one message loses the whole
    round.

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


class OwnPrompts(VerifierGuard):
    """Seed replay while nodes choose their own problems, as a baseline against seed grinding."""

    def begin(self, round: int, prompts: Sequence[str]) -> None:
        """Begin a round, but pass on only its number."""
        for part in self._parts:
            if isinstance(part, SeedReplayVerifier):
                part.begin_round(round)


def _own_prompts(peer: Peer, ground: Ground) -> NodeGuard:
    return OwnPrompts(counting(replay(peer, ground), peer.tokenizer))


def _whole_rounds(peer: Peer, ground: Ground) -> NodeGuard:
    """Build the homogeneous stack so that it accepts all of a node's round or none of it."""
    config = ground.config
    owed = config.prompts * config.group_size // config.nodes
    return homogeneous(peer, ground, WholeRounds(owed))


def _content_spans(peer: Peer, ground: Ground) -> NodeGuard:
    """Build a guard from the content verifiers that locate their findings; only the spans pay."""
    verifier = AllOf(
        ScreensVerifier(), ArithmeticVerifier(), CodeVerifier(), RecurrenceVerifier(),
        name="mask_content_span",
    )  # fmt: skip
    return TokenSpanGuard(counting(verifier, peer.tokenizer), peer.tokenizer)


def _heterogeneous_signed(peer: Peer, ground: Ground) -> NodeGuard:
    """Build the heterogeneous stack with signatures and the task's own reference answers."""
    guard = heterogeneous(peer, ground)
    config = ground.config
    known = {name: node_key(config, name).public for name in config.node_names}
    guard.guard.identity = Identity(KeyRing(known), run=run_name(config))
    guard.guard.references = OfTask(ground.task)
    return guard


def _spot_checks(peer: Peer, ground: Ground, *, percent: int) -> NodeGuard:
    """Build `same_weights` so that it checks a share of each node's completions.

    Newcomers are checked no more often than others: the share is constant until a node is caught.
    """
    share = percent / 100
    whole = same_weights(peer, ground).guard.verifier
    checked = SpotCheck(whole, share=share, newcomers=share, key=ground.key)
    return VerifierGuard(counting(checked, peer.tokenizer))


def _authors_logit(peer: Peer, ground: Ground, *, k: int) -> NodeGuard:
    """Build the logit check of the paper's own code: top 100 in 2025, later top 60."""
    return VerifierGuard(counting(PaperLogitVerifier(peer.model, k=k), peer.tokenizer))


DEFENCES: Final = (
    Defence("cap_improbable", member=learning.CapImprobable),
    Defence(
        "mask_span",
        by_verifier(lambda peer, ground: of_weights("logprob_bound", peer, ground)),
        member=learning.MaskSpans,
    ),
    Defence("mask_content_span", _content_spans, member=learning.MaskSpans),
    Defence("shipped_judge", by_verifier(lambda peer, ground: shipped(ground))),
    *(Defence(f"authors_logit_{k}", partial(_authors_logit, k=k)) for k in (100, 60)),
    *(
        Defence(f"spot_checks_{percent}", partial(_spot_checks, percent=percent))
        for percent in (5, 10, 25, 50, 100)
    ),
    Defence("own_prompts", _own_prompts, coin=True),
    Defence("whole_rounds", _whole_rounds, coin=True),
    Defence("heterogeneous_signed", _heterogeneous_signed, terms=SignedTerms),
)
