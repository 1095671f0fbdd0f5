"""Nodes whose completions, taken together, were not sampled as declared."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Final

import numpy as np

from grpo_guard.completion import Completion
from grpo_guard.logprob.scan import DRIFT_SHARE
from grpo_guard.logprob.together import Batch, Told, sampler_log_probs, together
from grpo_guard.logprob.verifier import Scored
from grpo_guard.nodes.fortunes import Fortunes
from grpo_guard.nodes.store import NodeStore
from grpo_guard.sampling import SamplingSpec
from grpo_guard.verdict import Finding, Verdict

REPEATED: Final = "repeated_stretch"
TOGETHER: Final = "node_improbable"
# What a convicted node sends is held to this level and not to alpha. Of its honest work as much is
# lost; of poison that is a little improbable each time, most is found.
_SUSPECT: Final = 0.05

Placed = tuple[Finding, tuple[int, int]]
"""A finding, and the tokens that it is about."""


class NodeEvidence:
    """Adds up what a node's completions say, over a batch and over batches.

    Args:
        name: Of the verifier, which its memory is called by.
        sampling: The declared sampler.
        alpha: Chance that an honest node is ever convicted; 0 = nodes are not looked at.
        store: Where the memory lies; None: here.
    """

    def __init__(
        self, name: str, sampling: SamplingSpec, alpha: float, store: NodeStore | None
    ) -> None:
        self.sampling = sampling
        self.alpha = alpha
        self.fortunes = Fortunes(store=store, name=f"{name}_fortunes")

    def convicted(
        self,
        batch: Sequence[Completion],
        scored: Mapping[int, Scored],
        verdicts: Mapping[int, Verdict],
    ) -> dict[int, Placed]:
        """Completions of convicted nodes that are to be rejected, by their place in the batch.

        Args:
            batch: All that came together.
            scored: Those of them that were scored.
            verdicts: On these, each by itself.
        """
        if not self.alpha:
            return {}
        places = defaultdict[str, list[int]](list)
        for i in scored:
            node = batch[i].node
            if node is not None and not verdicts[i].abstained:
                places[node].append(i)
        said = {
            node: together([self._told(scored[i], verdicts[i]) for i in own])
            for node, own in places.items()
        }
        fortunes = self.fortunes.add(
            {node: (_digest(scored[i] for i in places[node]), b.log_e) for node, b in said.items()}
        )
        found: dict[int, Placed] = {}
        for node, own in places.items():
            if fortunes[node] >= -math.log(self.alpha):
                chance = math.exp(-fortunes[node])
                found |= dict(_carriers(node, own, said[node], verdicts, chance))
        return {i: placed for i, placed in found.items() if verdicts[i].accepted}

    def _told(self, scored: Scored, verdict: Verdict) -> Told:
        profile, temperature = scored.profile, self.sampling.temperature
        drift = DRIFT_SHARE * profile.tau / temperature
        log_probs = sampler_log_probs(scored.stats, self.sampling, drift, profile.least_tail)
        log_e = log_calibrated(1.0 if verdict.p_value is None else verdict.p_value)
        ids = scored.encoded.completion_ids
        return Told(scored.encoded.prompt_ids, ids, log_probs, log_e)


def log_calibrated(p: float) -> float:
    """Log e-value of a p-value: log of the integral of k p^(k - 1) over k in [0, 1].

    The mean of all power calibrators (Vovk and Wang, arXiv 1912.06116), 1/2 at p = 1.
    """
    p = max(p, 1e-300)
    log = math.log(p)
    if log > -1e-3:
        return math.log(0.5)  # its limit, where the terms cancel
    return math.log1p(-p + p * log) - log - 2 * math.log(-log)


def _carriers(
    node: str, places: Sequence[int], said: Batch, verdicts: Mapping[int, Verdict], chance: float
) -> Iterator[tuple[int, Placed]]:
    """The node's completions that carry the evidence, the longest repeated stretch last."""
    about = f"node {node[:80]!r}, chance for an honest one {chance:.1e}"
    for i in places:
        p = verdicts[i].p_value
        if p is not None and p < _SUSPECT:
            message = f"improbable (p = {p:.1e}), of a node whose work is too improbable: {about}"
            yield i, (Finding(TOGETHER, message), (0, 1))
    for stretch in sorted(said.stretches, key=lambda s: s.span[1] - s.span[0]):
        message = (
            f"these tokens stand in its node's answers to {stretch.prompts} prompts, though the "
            f"policy would hardly write them there: {about}"
        )
        yield places[stretch.text], (Finding(REPEATED, message), stretch.span)


def _digest(scored: Iterator[Scored]) -> int:
    """Of a node's batch, so that one that is looked at twice counts once."""
    digest = blake2b(digest_size=8)
    for one in scored:
        for ids in (one.encoded.prompt_ids, one.encoded.completion_ids):
            digest.update(np.asarray((len(ids), *ids), np.int64).tobytes())
    return int.from_bytes(digest.digest(), "little") >> 1
