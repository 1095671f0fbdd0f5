"""Find nodes whose sentences are foreign: each only slightly, but too much when combined."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Final

import numpy as np
from numpy.typing import NDArray

from grpo_guard.core.completion import Completion
from grpo_guard.logprob.node_evidence import log_calibrated
from grpo_guard.nodes.e_process import log_threshold
from grpo_guard.nodes.e_process_memory import EProcessMemory, digest_of
from grpo_guard.nodes.store import NodeStore

Array = NDArray[np.float64]

_SHARES: Final = (0.7, 0.06)
# (Share of poisoned completions, largest p-value of a poisoned completion.) A slogan is among the
# most foreign sentences in a completion but rarely more foreign than all honest text, so the
# evidence is that foreign sentences keep recurring, not how foreign any one of them is.
_STEPS: Final = ((0.75, 0.1), (0.75, 0.2))


class NodeSentences:
    """Evidence that a node's sentences do not belong in their context.

    A slogan in ordinary words that changes every time has no form a rule would recognise and no
    recurring wording, but it is foreign every time. A completion's p-value is that of its most
    foreign sentence times the number of sentences read; each p-value is converted to an e-value e.
    A batch's e-value is the mean of several bets, each on a certain share of the node's completions
    being poisoned (`_SHARES`, `_STEPS`): the product of 1 - share + share * e. With a plain product
    of e-values, nine honest completions could excuse a poisoned one. `EProcessMemory` accumulates
    the batches. If the p-values are valid, the probability that an honest node is ever convicted is
    at most ``alpha``.
    """

    def __init__(self, alpha: float, store: NodeStore | None) -> None:
        self.alpha = alpha
        self.e_processes = EProcessMemory(store=store, name="reader_fortunes")

    def convicted(
        self, batch: Sequence[Completion], p_values: Mapping[int, Sequence[float]]
    ) -> frozenset[str]:
        """Add this batch's evidence and return the batch's convicted nodes.

        Args:
            batch: All completions that arrived together.
            p_values: p-values of the sentences read, by index in the batch.
        """
        # Identical completions count once: resending a text must not multiply the evidence.
        evidence = defaultdict[str, dict[tuple[str, bytes], float]](dict)
        for i, own in p_values.items():
            if (node := batch[i].node) is not None and own:
                key = batch[i].prompt_text, _digest(batch[i])
                evidence[node].setdefault(key, min(1.0, len(own) * min(own)))
        after = self.e_processes.add(
            {
                node: (digest_of(digest for _, digest in own), [_together(own)])
                for node, own in evidence.items()
            }
        )
        logs = {node: process.log_e_value for node, process in after.items()}
        silent = {c.node for c in batch if c.node is not None} - logs.keys()
        if silent:
            # A batch with nothing to read must not acquit a convicted node.
            known = self.e_processes.log_e_values()
            logs |= {node: known[node] for node in silent & known.keys()}
        return frozenset(n for n, log in logs.items() if log >= log_threshold(self.alpha))


def _together(p_values: Mapping[tuple[str, bytes], float]) -> float:
    """Return the log e-value of a batch, from p-values by prompt and completion."""
    by_prompt = defaultdict[str, list[float]](list)
    for (prompt, _), p in p_values.items():
        by_prompt[prompt].append(p)
    bets = np.sum([_bets(answers) for answers in by_prompt.values()], axis=0)
    return float(np.logaddexp.reduce(bets) - math.log(len(bets)))


def _bets(answers: Sequence[float]) -> Array:
    """Return the logarithm of what each bet wins on one prompt, from the p-values of its answers:
    the mean over the answers, which is valid however they depend on each other."""
    each = np.array([log_calibrated(p) for p in answers])
    wins = [np.logaddexp(math.log1p(-q), math.log(q) + each) for q in _SHARES]
    for share, most in _STEPS:
        held = np.array([p <= most for p in answers])
        wins.append(np.where(held, math.log1p(share / most - share), math.log1p(-share)))
    means: Array = np.logaddexp.reduce(np.array(wins), axis=1) - math.log(len(answers))
    return means


def _digest(completion: Completion) -> bytes:
    data = f"{completion.prompt_text}\0{completion.text}".encode("utf-8", "surrogatepass")
    return blake2b(data, digest_size=16).digest()
