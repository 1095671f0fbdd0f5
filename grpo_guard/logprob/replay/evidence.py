"""Turn replay margins into a p-value that allows for numerical drift.

Honest tokens have margin 0, apart from drift: now and then two tokens are so close that rounding
decides between them, differently at the node and at the verifier. A profile bounds how often that
happens: for a few values of m, it gives the maximum share of honest tokens with a margin of m or
more. For each m, the number of such tokens is tested against a binomial tail, and the p-values are
combined by Bonferroni. The same test thus detects both a few large margins (one forced digit) and
many small ones (another temperature). The entry at margin 0 counts mismatches, but only at
positions where the policy is not sure: elsewhere the tokens match whatever the seed.

Clustered drift would violate the binomial's independence assumption; the rates in the profiles
exceed the measured rates by enough to allow for that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_guard.logprob.evidence import binomial_tail
from grpo_guard.logprob.profile import DriftProfile
from grpo_guard.logprob.stats import Floats, TokenStats

# A position is informative about the seed if its most likely token is below this probability.
SURE = 0.99


@dataclass(frozen=True, slots=True)
class ReplayEvidence:
    """The evidence from replaying one completion; `Replayed` describes the arrays."""

    p_value: float  # combined over all margins, in [0, 1]
    threshold: float  # the margin whose count was decisive, in raw logits
    excess: Floats
    informative: NDArray[np.bool_]
    informative_matches: int

    @property
    def mismatches(self) -> int:
        """Number of tokens that differ from the token drawn."""
        return int((self.excess > 0).sum())


class Replayed(NamedTuple):
    """A completion's tokens compared with the draws under its seed, shape [n] each."""

    excess: Floats  # replay margin or edge gap, whichever is larger, raw logits
    informative: NDArray[np.bool_]  # positions where the policy is not sure


def replayed_tokens(stats: TokenStats) -> Replayed | None:
    """Compare a completion with the draws under its seed, or return None if none was replayed."""
    if stats.replay_margin is None:
        return None
    # A token outside the support cannot have been drawn, however large its noise.
    excess = np.maximum(stats.replay_margin, stats.edge_gap)
    return Replayed(excess, stats.max_logprob < math.log(SURE))


def weigh_replay(stats: TokenStats, profile: DriftProfile) -> ReplayEvidence:
    """Weigh the evidence that a completion was not drawn under its seed.

    The statistics must have replay margins and no NaN.

    Raises:
        ValueError: the statistics have no replay margins, or the profile has no replay rates.
    """
    tokens = replayed_tokens(stats)
    if tokens is None:
        raise ValueError("stats.replay_margin: expected margins, got None: no seed was replayed")
    if not profile.replay:
        raise ValueError(f"profile {profile.name!r}: expected replay rates, got none")
    excess, informative = tokens
    tests = []
    for margin, rate in profile.replay:
        # A mismatch where the policy is sure has a margin, which is counted by the other entries.
        # If it also counted at margin 0, it would enter both sides of the rate.
        n = len(excess) if margin > 0 else int(informative.sum())
        k = int((excess >= margin).sum() if margin > 0 else (excess[informative] > 0).sum())
        tests.append((binomial_tail(k, n, rate) if k else 1.0, margin))
    p_value, threshold = min(tests)
    return ReplayEvidence(
        min(1.0, len(tests) * p_value),
        threshold,
        excess,
        informative,
        int((informative & (excess <= 0)).sum()),
    )
