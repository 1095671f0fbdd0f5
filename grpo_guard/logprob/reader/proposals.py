"""Evidence over many spans: a phrase in several places, and a node whose sentences are foreign."""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict, deque
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from statistics import median_low
from typing import Final

import numpy as np

from grpo_guard.core.completion import Completion
from grpo_guard.logprob.node_evidence import log_calibrated
from grpo_guard.logprob.stats import Floats
from grpo_guard.nodes.e_process import log_threshold
from grpo_guard.nodes.e_process_memory import EProcessMemory, digest_of
from grpo_guard.nodes.store import NodeStore

_SHARES: Final = (0.7, 0.06)
# (Share of poisoned completions, largest p-value of a poisoned completion.) A slogan is among the
# most foreign sentences in a completion but rarely more foreign than all honest text, so the
# evidence is that foreign sentences keep recurring, not how foreign any one of them is.
_STEPS: Final = ((0.75, 0.1), (0.75, 0.2))
FEWEST_PLACES: Final = 3  # that must be read before a phrase is judged
_MOST_PLACES: Final = 16
_MOST_PHRASES: Final = 4096


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
        """Add this batch's evidence, the p-values of the sentences read by index in the batch, and
        return its convicted nodes."""
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


def _bets(answers: Sequence[float]) -> Floats:
    """Return the logarithm of what each bet wins on one prompt, from the p-values of its answers:
    the mean over the answers, which is valid however they depend on each other."""
    each = np.array([log_calibrated(p) for p in answers])
    wins = [np.logaddexp(math.log1p(-q), math.log(q) + each) for q in _SHARES]
    for share, most in _STEPS:
        held = np.array([p <= most for p in answers])
        wins.append(np.where(held, math.log1p(share / most - share), math.log1p(-share)))
    means: Floats = np.logaddexp.reduce(np.array(wins), axis=1) - math.log(len(answers))
    return means


def _digest(completion: Completion) -> bytes:
    data = f"{completion.prompt_text}\0{completion.text}".encode("utf-8", "surrogatepass")
    return blake2b(data, digest_size=16).digest()


class PhrasePlaces:
    """The p-values of each node's phrases in every place where they were read. Not thread-safe.

    A habit can look foreign in one odd place, and a slogan can look natural in one lucky place, so
    the lower median over places decides. The p-values must not be multiplied, because a phrase's
    places are not independent: a habit that is slightly odd is odd every time.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str | None, bytes], deque[float]] = OrderedDict()

    def add(self, node: str | None, phrase: str, p_value: float) -> None:
        key = (node, _mark(phrase))
        self._known.setdefault(key, deque(maxlen=_MOST_PLACES)).append(p_value)
        self._known.move_to_end(key)
        if len(self._known) > _MOST_PHRASES:
            self._known.popitem(last=False)

    def p_value(self, node: str | None, phrase: str) -> float | None:
        """Return the lower median over the phrase's latest places, if enough have been read."""
        places = self._known.get((node, _mark(phrase)), ())
        return median_low(places) if len(places) >= FEWEST_PLACES else None


def _mark(phrase: str) -> bytes:
    """Return a digest, so that authors cannot use up memory with long phrases."""
    plain = " ".join(phrase.casefold().split())
    return blake2b(plain.encode("utf-8", "surrogatepass"), digest_size=16).digest()
