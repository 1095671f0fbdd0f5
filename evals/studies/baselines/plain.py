"""A rule about what a node leaves out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Verdict, accept, reject
from grpo_guard.core.verifier import CompletionVerifier


class WholeRounds(CompletionVerifier):
    """Rejects all of a node's completions in a round in which it left slots empty.

    A node that sends only what suits it chooses what is trained on. Here only one choice per round
    is left, all or nothing. An honest node that loses one message loses the whole round.

    Args:
        owed: Completions that a node owes in a round; one batch must hold the whole round.
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
