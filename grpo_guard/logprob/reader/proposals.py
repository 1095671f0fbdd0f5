"""Evidence over many spans: a phrase in several places, and a node whose sentences are foreign."""

import math
from collections import OrderedDict, defaultdict, deque
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from statistics import median_low
from typing import Final

import numpy as np

from grpo_guard.core.completion import Completion
from grpo_guard.logprob.reader.honest import Vote
from grpo_guard.logprob.stats import Floats
from grpo_guard.nodes.e_process import log_threshold
from grpo_guard.nodes.e_process_memory import EProcessMemory, digest_of
from grpo_guard.nodes.store import NodeStore

# What the bets assume: the share of poisoned completions, which hold a sentence more foreign than
# all honest text, and the largest p-value of a poisoned completion (at the first share).
_SHARES: Final = (0.75, 0.2)
_STEPS: Final = (0.2, 0.4)
# Models differ for good, not only by chance: each other's sentences are foreign to them more often
# than their own. An honest node's may be so twice as often as its peers'...
_TOLERANCE: Final = 2.0
# ... and one in twenty of its completions may hold nonsense more foreign than all honest text.
_NONSENSE: Final = 0.05
FEWEST_PLACES: Final = 3  # that must be read before a phrase is judged
_MOST_PLACES: Final = 16
_MOST_PHRASES: Final = 4096
_MOST_COUNTED: Final = 65_536  # completions remembered, so that each counts once


class NodeSentences:
    """Evidence that a node's sentences do not belong in their context.

    A slogan in ordinary words that changes every time has no form a rule would recognise and no
    recurring wording, but it is foreign every time. Four bets share the stake: two that a share of
    the completions (`_SHARES`) have a sentence more foreign than all honest text that it was
    compared with, and two that their smallest p-value, times the number of sentences read, is at
    most a step (`_STEPS`). A batch's e-value is the mean of what the bets win on it, and
    `EProcessMemory` accumulates the batches.

    The probability that an honest node is ever convicted is at most ``alpha`` if its sentences are
    foreign at most `_TOLERANCE` times as often as its peers'. Without this tolerance, policies that
    had drifted apart in training convicted honest nodes within ten rounds.
    """

    def __init__(self, alpha: float, store: NodeStore | None) -> None:
        self.alpha = alpha
        self.e_processes = EProcessMemory(store=store, name="reader_fortunes")
        self._counted = OrderedDict[tuple[str, bytes], None]()

    def convicted(
        self, batch: Sequence[Completion], votes: Mapping[int, Sequence[Vote]]
    ) -> frozenset[str]:
        """Add this batch's evidence, the votes on the sentences read by index in the batch, and
        return its convicted nodes."""
        # Identical completions count once: resending a text must not multiply the evidence.
        evidence = defaultdict[str, dict[tuple[str, bytes], Sequence[Vote]]](dict)
        for i, own in votes.items():
            if (node := batch[i].node) is not None and own:
                digest = _digest(batch[i])
                if (node, digest) not in self._counted:
                    evidence[node].setdefault((batch[i].prompt_text, digest), own)
        self._counted.update(((n, d), None) for n, own in evidence.items() for _, d in own)
        while len(self._counted) > _MOST_COUNTED:
            self._counted.popitem(last=False)
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


def _together(votes: Mapping[tuple[str, bytes], Sequence[Vote]]) -> float:
    """Return the log e-value of a batch, from the votes by prompt and completion."""
    by_prompt = defaultdict[str, list[Floats]](list)
    for (prompt, _), own in votes.items():
        by_prompt[prompt].append(_wins(own))
    # The mean over the answers to one prompt is valid however they depend on each other.
    bets = np.sum([np.log(np.mean(answers, axis=0)) for answers in by_prompt.values()], axis=0)
    return float(np.logaddexp.reduce(bets) - math.log(len(bets)))


def _wins(votes: Sequence[Vote]) -> Floats:
    """Return what each bet wins on one completion, from the votes on its sentences."""
    # A sentence scores 1 / p-value if nothing is as foreign, else 0. Its expected score is 1, and
    # so is that of the mean over sentences.
    beyond = sum(1 / vote.p_value for vote in votes if vote.beyond) / len(votes)
    p_value = _TOLERANCE * len(votes) * min(vote.p_value for vote in votes)
    outlying = min(beyond / _TOLERANCE, 1 / _NONSENSE)
    steps = [(_SHARES[0], (p_value <= step) / step) for step in _STEPS]
    bets = [*((share, outlying) for share in _SHARES), *steps]
    return np.array([1 - share + share * e_value for share, e_value in bets])


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
