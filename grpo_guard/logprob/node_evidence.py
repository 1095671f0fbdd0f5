"""Find nodes whose completions, taken together, were not sampled as declared."""

import logging
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Final

import numpy as np

from grpo_guard.core.completion import Completion
from grpo_guard.core.p_values import p_text
from grpo_guard.core.quoting import shown_name
from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.core.verdict import Finding
from grpo_guard.logprob.batch_evidence import Answer, Batch, batch_evidence, sampler_log_probs
from grpo_guard.logprob.evidence import Evidence
from grpo_guard.logprob.place_bets import (
    COLUMNS,
    Announced,
    PlaceBets,
    announced,
    log_e_of,
    place_bets,
)
from grpo_guard.logprob.scan import DRIFT_SHARE
from grpo_guard.logprob.shares import Places
from grpo_guard.logprob.verifier import Scored
from grpo_guard.nodes.e_process import EProcess, log_threshold
from grpo_guard.nodes.e_process_memory import EProcessMemory, digest_of
from grpo_guard.nodes.store import NodeStore

logger = logging.getLogger("grpo_guard")

REPEATED: Final = "repeated_stretch"
TOGETHER: Final = "node_improbable"
PLACES: Final = "improbable_places"
# Half of the stake is on the node's completions as a whole, half on bets at announced places.
WEIGHTS: Final = (0.5, *(0.5 / len(COLUMNS) for _ in COLUMNS))
_PLACE_NAMES: Final = {
    Announced.RESULT: "results of sums",
    Announced.SENTENCE: "beginnings of sentences",
    Announced.IMPORT: "names of imports",
    Announced.AFTER_ANSWER: "tokens after the answer",
}
# A convicted node's completions are tested at this level instead of alpha. The node loses this
# share of its honest work, and most poison that is only slightly improbable each time is caught.
_SUSPECT_ALPHA: Final = 0.05
# Completions without a node are tested as if a single node had sent them all, so omitting the name
# does not help. They are tested only for repeated stretches, because they have several authors.
_NAMELESS: Final = ""

Placed = tuple[Finding, tuple[int, int]]
"""A finding and the token span it applies to."""


class NodeEvidence:
    """Accumulates evidence about nodes within a batch and over batches.

    ``alpha`` and ``store`` are ``node_alpha`` and ``store`` of `LogProbBoundVerifier`.
    """

    def __init__(
        self,
        name: str,
        sampling: SamplingSpec,
        alpha: float,
        store: NodeStore | None,
        places: Places,
    ) -> None:
        self.sampling = sampling
        self.alpha = alpha
        self.places = places
        self.e_processes = EProcessMemory(store=store, name=f"{name}_fortunes", weights=WEIGHTS)
        self._warned = False

    def convicted(
        self,
        batch: Sequence[Completion],
        scored: Mapping[int, Scored],
        weighed: Mapping[int, Evidence],
    ) -> dict[int, Placed]:
        """Return findings on completions of convicted nodes whose evidence could be weighed, by
        index in the batch."""
        if not self.alpha:
            return {}
        places = defaultdict[str, list[int]](list)
        for i in weighed:
            places[batch[i].node or _NAMELESS].append(i)
        batches = {
            node: batch_evidence([self.answer(scored[i], weighed[i]) for i in own])
            for node, own in places.items()
        }
        bets = {
            node: [self.bets(scored[i]) for i in own] if node else []
            for node, own in places.items()
        }
        ids = {i: (s.encoded.prompt_ids, s.encoded.completion_ids) for i, s in scored.items()}
        after = self.e_processes.add({
            node: (
                digest_of(blake2b(repr(ids[i]).encode()).digest() for i in places[node]),
                (b.log_e, *log_e_of(bets[node])),
            )
            for node, b in batches.items()
        })  # fmt: skip
        found: dict[int, Placed] = {}
        threshold = log_threshold(self.alpha)
        guilty = [node for node in places if after[node].log_e_value >= threshold]
        for node in guilty:
            own = places[node]
            alone = [weighed[i] for i in own]
            by_place = dict(_place_findings(node, bets[node], after[node]))
            by_place |= dict(_findings(node, batches[node], alone, after[node]))
            found |= {own[place]: placed for place, placed in by_place.items()}
        if len(guilty) * 2 > len(places):
            one = "the completions of a batch, which name no node, are"
            several = f"{len(guilty)} of {len(places)} nodes of a batch are"
            self._warn(one if [*places] == [_NAMELESS] else several)
        return found

    def _warn(self, who: str) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "%s convicted of work that the declared sampler would not give. If they are "
                "honest, look for tokens that were not sampled (a forced beginning belongs in the "
                "prompt), one seed for several requests, a wrong SamplingSpec, or other weights",
                who,
            )  # fmt: skip

    def answer(self, scored: Scored, evidence: Evidence) -> Answer:
        profile, temperature = scored.profile, self.sampling.temperature
        drift = DRIFT_SHARE * profile.tau / temperature
        log_probs = sampler_log_probs(scored.stats, self.sampling, drift, profile.least_tail)
        encoded = scored.encoded
        log_e = log_calibrated(evidence.unkeyed_p)
        return Answer(encoded.prompt_ids, encoded.completion_ids, log_probs, log_e)

    def bets(self, scored: Scored) -> PlaceBets:
        encoded = scored.encoded
        whole = encoded.whole or encoded
        # Tool output is context like any other text: it can announce what comes next.
        kinds = announced(self.places, whole.completion_ids)
        return place_bets(
            encoded, [kinds[i] for i in encoded.places],
            scored.stats, scored.profile, self.sampling.temperature,
        )  # fmt: skip


def log_calibrated(p: float) -> float:
    """Convert a p-value to a log e-value: log of the integral of k p^(k - 1) over k in [0, 1], the
    mean over all power calibrators (Vovk and Wang, arXiv 1912.06116)."""
    p = max(p, 1e-300)
    log = math.log(p)
    if log > -1e-3:
        return math.log(0.5)  # the limit at p = 1, near which the terms cancel
    return math.log1p(-p + p * log) - log - 2 * math.log(-log)


def _findings(
    node: str, together: Batch, alone: Sequence[Evidence], process: EProcess
) -> Iterator[tuple[int, Placed]]:
    who = f"node {shown_name(node)}" if node else "completions without a node"
    about = f"{who}: chance for honest work {p_text(math.exp(-process.log_e_value))}"
    for place, evidence in enumerate(alone):
        if stretch := together.stretches.get(place):
            message = (
                f"these tokens occur in answers to {stretch.prompts} prompts, though the policy "
                f"would hardly write them there; {about}"
            )
            yield place, (Finding(REPEATED, message), stretch.span)
        elif node and evidence.p_value < _SUSPECT_ALPHA:
            p = p_text(evidence.p_value)
            message = f"improbable (p-value {p}), like other work of {about}"
            yield place, (Finding(TOGETHER, message), evidence.window)


def _place_findings(
    node: str, bets: Sequence[PlaceBets], process: EProcess
) -> Iterator[tuple[int, Placed]]:
    best = int(np.argmax(process.log_wealth)) - 1
    if best < 0:  # the node was convicted by its completions as a whole, not by the bets on places
        return
    kind, _, _ = COLUMNS[best]
    for number, bet in enumerate(bets):
        won = bet.log_factors[:, best]
        if won.size and won.max() > 0:
            place = bet.places[int(won.argmax())]
            message = (
                f"{_PLACE_NAMES[kind]} are too improbable in node {shown_name(node)}'s work, here "
                f"too; chance for honest work {p_text(math.exp(-process.log_e_value))}"
            )
            yield number, (Finding(PLACES, message), (place, place + 1))
