"""`Counts`: what one completion may do, and a node may not do again and again."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache

from grpo_guard.completion import Completion
from grpo_guard.nodes.fisher import log_tail
from grpo_guard.nodes.intake import FREQUENT_VERIFIER
from grpo_guard.nodes.ledger import EvidenceLedger
from grpo_guard.nodes.schema import LedgerError
from grpo_guard.nodes.standing import State
from grpo_guard.verdict import Cause, Finding, Verdict, abstain, accept, reject

FREQUENT_KIND = "frequent_finding"
# Of one node's answers to one prompt: what is misread in one of them is misread in all.
MOST_OF_PROMPT = 3
FEWEST = 2
"""Findings of a node in a batch before it is tested: one is no habit."""


class Counts:
    """Rejects completions with a finding that their node has far more often than its peers.

    Some findings must not reject by themselves, since honest work has them too: a wrong sum that is
    taken back, a wrong sum in words. An attacker who sends nothing else teaches it all the same.
    Two rules end it. A batch in which a node has such findings more often than the others in it, by
    Fisher's exact test at ``batch_alpha`` for each node: a few rounds of poison may be enough
    to teach it. And a ledger of its own, which counts them per node and round, for who stays
    below that. Of such a node the completions that have the finding are rejected, and no others.

    These rejections are no evidence for the guard's own ledger, as those of `StandingVerifier` are
    none: an honest model with a habit of its own (one that corrects itself where others do not)
    loses the completions that show it and stays in the swarm. Without such a habit its chance to
    lose those of one batch is at most ``batch_alpha``, if what is misread in one prompt is no more
    than three of its answers, and to be found hard the ledger's ``alpha``.

    Args:
        ledger: For this alone; not the guard's own.
        batch_alpha: Level of the test within a batch, in [0, 1); 0 = none. It needs batches of
            several nodes.
    """

    def __init__(self, ledger: EvidenceLedger, batch_alpha: float) -> None:
        self.ledger = ledger
        self.batch_alpha = batch_alpha

    def judged(
        self,
        batch: Sequence[Completion],
        verdicts: Sequence[Verdict],
        counted: Sequence[Finding | None],
    ) -> list[Verdict]:
        """The verdicts, and rejections of what a node has too often.

        Abstains where the ledger cannot be read, on completions with such a finding alone.

        Args:
            batch: The completions, all that came together.
            verdicts: What a rule said of each.
            counted: The finding of each that counts; None where it has none.
        """
        told = cache(lambda name, has: reject(name) if has else accept(name))
        noted = [
            verdict if verdict.abstained else told(verdict.verifier, found is not None)
            for verdict, found in zip(verdicts, counted, strict=True)
        ]
        self.ledger.record(batch, noted)
        frequent = self._frequent_here(batch, counted) if any(counted) else frozenset()
        return [
            verdict
            if found is None or verdict.rejected
            else self._judge(completion, verdict, found, frequent)
            for completion, verdict, found in zip(batch, verdicts, counted, strict=True)
        ]

    def _frequent_here(
        self, batch: Sequence[Completion], counted: Sequence[Finding | None]
    ) -> frozenset[str]:
        """Nodes whose findings in this batch are too many beside those of the others."""
        of_prompt = defaultdict[tuple[str, str], list[int]](lambda: [0, 0])
        for completion, found in zip(batch, counted, strict=True):
            if completion.node is not None:
                place = of_prompt[completion.node, completion.prompt_text]
                place[0] += found is not None
                place[1] += 1
        of_node = defaultdict[str, list[int]](lambda: [0, 0])
        for (node, _), (having, sent) in of_prompt.items():
            of_node[node][0] += min(having, MOST_OF_PROMPT)
            of_node[node][1] += min(sent, MOST_OF_PROMPT)
        return frozenset(
            node
            for node, (k, _) in of_node.items()
            if k >= FEWEST and _chance(node, of_node) < self.batch_alpha
        )

    def _judge(
        self, completion: Completion, verdict: Verdict, found: Finding, frequent: frozenset[str]
    ) -> Verdict:
        node = completion.node
        if node is None:
            return verdict
        try:
            hard = node in frequent or self.ledger.state(node) is State.HARD
        except LedgerError as error:
            return abstain(verdict.verifier, Cause.FAULT, str(error)[:300])
        if not hard:
            return verdict
        message = f"node {node[:80]!r} has {found.kind} more often than its peers, beyond chance"
        said = Finding(FREQUENT_KIND, message, found.char_span, found.token_span)
        return reject(FREQUENT_VERIFIER, findings=(said, *verdict.findings))


def _chance(node: str, of_node: Mapping[str, Sequence[int]]) -> float:
    """Chance that a node has its findings as one of its peers.

    No peer weighs more than the node itself: one that sends a hundred clean texts would make
    anybody's few findings look like a habit.
    """
    k, n = of_node[node]
    others = [(having, sent) for name, (having, sent) in of_node.items() if name != node]
    capped = [(math.ceil(having * min(1.0, n / sent)), min(sent, n)) for having, sent in others]
    return math.exp(log_tail(k, n, sum(k for k, _ in capped), sum(n for _, n in capped)))
