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

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_guard.core.completion import Completion
from grpo_guard.core.p_values import p_text
from grpo_guard.core.verdict import Finding
from grpo_guard.logprob.encode import Encoded, Encoder
from grpo_guard.logprob.evidence import binomial_tail
from grpo_guard.logprob.profile import DriftProfile
from grpo_guard.logprob.stats import Floats, TokenStats

# A position is informative about the seed if its most likely token is below this probability.
SURE = 0.99
# A different sampler or other weights shift many tokens slightly; no single one is to blame.
SMALL_MARGIN = 0.5
# After a forged token, a few more tokens mismatch; under another seed, about a third of all do.
FEW, FEW_SHARE = 4, 0.05
# This many informative matches before the first mismatch show that the right seed was used.
ON_THE_WAY = 16


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
    """Weigh the evidence that a completion was not drawn under its seed; no statistic may be NaN.
    Raises ValueError if there are no replay margins, or the profile has no replay rates."""
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


def describe(
    encoder: Encoder,
    completion: Completion,
    encoded: Encoded,
    stats: TokenStats,
    evidence: ReplayEvidence,
) -> Finding:
    """Return the finding that explains why a completion is rejected."""
    kind, message, (start, end) = _diagnosis(encoder, encoded, stats, evidence)
    message += f"; chance for honest work {p_text(evidence.p_value)}"
    # If the whole completion is wrong, no part of it is highlighted.
    whole = kind == "replay_mismatch"
    chars = None if whole else encoder.char_span(completion, encoded, start, end)
    return Finding(kind, message, char_span=chars, token_span=encoded.span(start, end))


def _diagnosis(
    encoder: Encoder, encoded: Encoded, stats: TokenStats, evidence: ReplayEvidence
) -> tuple[str, str, tuple[int, int]]:
    """Return the kind, message and token span of the finding."""
    assert stats.replay_token is not None
    excess, n = evidence.excess, len(evidence.excess)
    differs, far = excess > 0, excess >= max(evidence.threshold, SMALL_MARGIN)
    first, first_far, worst = int(differs.argmax()), int(far.argmax()), int(excess.argmax())
    places = encoded.places  # positions in the whole completion, for messages
    ends = int(stats.replay_token[first_far]) in encoder.eos_ids
    if far.any() and ends and differs[:first_far].sum() < FEW:
        by = f"{excess[first_far]:.2g} logits"
        message = f"continues at token {places[first_far]}, where the seed ends it by {by}"
        return "suppressed_eos", message, (first_far, n)
    if far.any() and far.sum() <= max(FEW, FEW_SHARE * n):
        theirs = _shown(encoder, encoded.completion_ids[worst])
        ours = _shown(encoder, int(stats.replay_token[worst]))
        message = (
            f"token {places[worst]} is {theirs}, where the seed draws {ours} by "
            f"{excess[worst]:.2g} logits; {evidence.mismatches} of {n} tokens differ"
        )
        return "forged_token", message, (worst, worst + 1)
    if far.any() and int(evidence.informative[:first].sum()) >= ON_THE_WAY:
        message = (
            f"follows the seed up to token {places[first]} and diverges there: "
            f"{evidence.mismatches} of the {n - first} tokens from it on differ"
        )
        return "replay_diverges", message, (first, n)
    message = (
        f"{evidence.informative_matches} of {int(evidence.informative.sum())} informative "
        "positions match the seed: another seed, run, round, node, slot or prompt, another engine "
        "or sampler than declared, or other weights"
    )
    return "replay_mismatch", message, (0, n)


def _shown(encoder: Encoder, token: int) -> str:
    return f"{encoder.tokenizer.decode([token])[:40]!r} (id {token})"
