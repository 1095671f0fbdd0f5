"""Which prompts are a node's to answer: what a seed replay of single completions leaves open."""

from __future__ import annotations

from collections.abc import Sequence

from grpo_guard.completion import Completion
from grpo_guard.evals.defences.base import ByRound
from grpo_guard.verdict import Cause, Verdict, accept, reject


class AssignedPrompts(ByRound):
    """Rejects what answers another node's problem, in swarms where each node has its own.

    A round's list of problems alone lets every node choose among all of them. That is a choice
    among forced groups, which teaches (see `studies.adaptive.grinding`).

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
