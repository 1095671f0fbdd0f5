"""Nodes whose sentences are foreign, each a little and all together too much."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from hashlib import blake2b

from grpo_guard.completion import Completion
from grpo_guard.logprob.node_evidence import log_calibrated
from grpo_guard.nodes.fortunes import Fortunes
from grpo_guard.nodes.store import NodeStore


class NodeSentences:
    """Evidence that a node's sentences do not belong where they are.

    A slogan of ordinary words that changes each time has no form that a rule knows and recurs
    nowhere. It is still foreign each time. A completion's p-value is that of its most foreign
    sentence, times the number of sentences that were read; each becomes an e-value, and the
    e-values of a node's completions multiply over batches (`Fortunes`).

    Args:
        alpha: Chance that an honest node is ever convicted, in (0, 1), where the p-values hold.
        store: Where the evidence lies; None: here.
    """

    def __init__(self, alpha: float, store: NodeStore | None) -> None:
        self.alpha = alpha
        self.fortunes = Fortunes(store=store, name="reader_fortunes")

    def convicted(
        self, batch: Sequence[Completion], p_values: Mapping[int, Sequence[float]]
    ) -> frozenset[str]:
        """The nodes of this batch that are convicted, after it.

        Args:
            batch: All that came together.
            p_values: By place in the batch, of the sentences that were read.
        """
        evidence = dict[str, tuple[int, float]]()
        for i, own in p_values.items():
            node = batch[i].node
            if node is None or not own:
                continue
            digest, log_e = evidence.get(node, (0, 0.0))
            # Of equal completions one counts: nobody multiplies evidence by sending a text again.
            mark = _digest(batch[i])
            evidence[node] = digest ^ mark, log_e + log_calibrated(min(1.0, len(own) * min(own)))
        after = self.fortunes.add({n: (digest, [log]) for n, (digest, log) in evidence.items()})
        return frozenset(n for n, one in after.items() if one.log >= -math.log(self.alpha))


def _digest(completion: Completion) -> int:
    data = f"{completion.prompt_text}\0{completion.text}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little") >> 1
