"""Which slots are a node's to fill: what a seed replay of single completions leaves open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from grpo_guard.completion import Completion
from grpo_guard.verdict import Cause, Verdict, accept, reject
from grpo_guard.verifier import CompletionVerifier


class AssignedPrompts(CompletionVerifier):
    """Rejects what answers another node's problem, in swarms where each node has its own.

    A round's list of problems alone lets every node choose among all of them. That is a choice
    among forced groups, which teaches (see `attacks.grinding`).

    Args:
        nodes: In the order in which the round's prompts are dealt.
        each: Prompts of each node.
    """

    name = "assigned_prompts"

    def __init__(self, nodes: Sequence[str], each: int) -> None:
        self.nodes, self.each = tuple(nodes), each
        self._owner: dict[str, str] = {}

    def begin_round(self, round: int, prompts: Sequence[str]) -> None:
        """From now on these prompts count, the first ``each`` for the first node, and so on."""
        del round
        self._owner = {
            prompt: self.nodes[at // self.each]
            for at, prompt in enumerate(prompts)
            if at // self.each < len(self.nodes)
        }

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        return [self._verdict(completion) for completion in batch]

    def _verdict(self, completion: Completion) -> Verdict:
        owner = self._owner.get(completion.prompt_text)
        if owner is not None and owner == completion.node:
            return accept(self.name)
        message = f"this prompt is not {(completion.node or '')[:80]!r}'s to answer in this round"
        return reject(self.name, Cause.MALFORMED, message)


class WholeRounds(CompletionVerifier):
    """Rejects all of a node's completions in a round in which it left slots empty.

    A node that sends only what suits it chooses what is trained on. So it is left one choice in
    each round, all or nothing. It costs an honest node that lost one message the whole round.

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
