"""Nodes whose sentences are foreign, each a little and all together too much."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Final

import numpy as np

from grpo_guard.completion import Completion
from grpo_guard.logprob.node_evidence import log_calibrated
from grpo_guard.nodes.fortunes import NodeEvidenceProcess
from grpo_guard.nodes.store import NodeStore

_SHARES: Final = (0.7, 0.06)
# A share of the completions whose p-value is at most so much. A slogan is among the most foreign
# sentences of a completion and seldom beyond all that honest authors write, so the evidence is that
# it happens each time, and not how foreign it is once.
_STEPS: Final = ((0.75, 0.1), (0.75, 0.2))


class NodeSentences:
    """Evidence that a node's sentences do not belong where they are.

    A slogan of ordinary words that changes each time has no form that a rule knows and recurs
    nowhere. It is still foreign each time. A completion's p-value is that of its most foreign
    sentence, times the number of sentences that were read; each becomes an e-value. A batch's
    e-value is a mean over bets that a share of the node's completions is poisoned (`_SHARES`,
    `_STEPS`): for each, the product of 1 - share + share * e. A product of e alone would let nine
    honest completions excuse a poisoned one. Batches add up in `NodeEvidenceProcess`.

    Args:
        alpha: Chance that an honest node is ever convicted, in (0, 1), where the p-values hold.
        store: Where the evidence lies; None: here.
    """

    def __init__(self, alpha: float, store: NodeStore | None) -> None:
        self.alpha = alpha
        self.fortunes = NodeEvidenceProcess(store=store, name="reader_fortunes")

    def convicted(
        self, batch: Sequence[Completion], p_values: Mapping[int, Sequence[float]]
    ) -> frozenset[str]:
        """The nodes of this batch that are convicted, after it.

        Args:
            batch: All that came together.
            p_values: By place in the batch, of the sentences that were read.
        """
        # Of equal completions one counts: nobody multiplies evidence by sending a text again.
        evidence = defaultdict[str, dict[bytes, float]](dict)
        for i, own in p_values.items():
            if (node := batch[i].node) is not None and own:
                evidence[node].setdefault(_digest(batch[i]), min(1.0, len(own) * min(own)))
        after = self.fortunes.add(
            {n: (_digest_of(own), [_together([*own.values()])]) for n, own in evidence.items()}
        )
        logs = {node: fortune.log for node, fortune in after.items()}
        silent = {c.node for c in batch if c.node is not None} - logs.keys()
        if silent:
            # A convicted node is not acquitted by a batch that holds nothing to read.
            known = self.fortunes.known()
            logs |= {node: known[node] for node in silent & known.keys()}
        return frozenset(n for n, log in logs.items() if log >= -math.log(self.alpha))


def _together(p_values: Sequence[float]) -> float:
    """Logarithm of a batch's e-value, from the p-values of its completions."""
    each = np.array([log_calibrated(p) for p in p_values])
    bets = [np.logaddexp(math.log1p(-q), math.log(q) + each).sum() for q in _SHARES]
    for share, most in _STEPS:
        held = sum(p <= most for p in p_values)
        passed = len(p_values) - held
        bets.append(held * math.log1p(share / most - share) + passed * math.log1p(-share))
    return float(np.logaddexp.reduce(bets) - math.log(len(bets)))


def _digest(completion: Completion) -> bytes:
    data = f"{completion.prompt_text}\0{completion.text}".encode("utf-8", "surrogatepass")
    return blake2b(data, digest_size=16).digest()


def _digest_of(marks: Iterable[bytes]) -> int:
    """Of a set in any order. Hashed, since an author could choose texts whose sum is a known one,
    and his batch would count as seen."""
    digest = blake2b(b"".join(sorted(marks)), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
