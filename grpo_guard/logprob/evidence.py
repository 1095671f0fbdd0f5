"""Turn the statistics of one completion's tokens into a p-value.

Four kinds of evidence against "these tokens were drawn from the declared sampler":

* *Support*: too many tokens lie too far outside the set that the sampler keeps. The k-th largest
  gap g has a binomial tail P(X >= k), X ~ Binomial(n, honest rate of gaps >= g), for a few k. With
  k = 1 this acts as a hard floor: a single token far enough outside is decisive.
* *Surprise*: tokens inside the support that are jointly too unlikely: text from another model or a
  higher temperature, moved lines, or poison built from allowed tokens. This is an e-process, a bet
  against honesty whose wealth has mean <= 1 if the tokens were honestly sampled. By Ville's
  inequality the wealth ever exceeds 1/a with probability at most a, whatever the length. Part of
  the stake starts betting afresh at every token, so honest text before the poison costs little.
* *Scan*: a few consecutive tokens that are too unlikely, whatever surrounds them; see `scan.py`.
  The e-process loses wealth on the honest text before those tokens, but a window does not.
* *Floor*: one token so improbable that drift cannot explain it.

The bets are fair under any truncation: an honest token is drawn from p restricted to a top set and
renormalised. Let K be the declared top-k (or the vocabulary), let P and Q ~ P^b, b < 1, be
normalised over K, and let the factor be Q/P on K and 1 outside. If the sampler keeps a smaller top
set T of K, the mean is Q(T) / P(T) <= 1, because flattening a distribution takes mass away from its
top sets. The tail mass under p is at least that under the restricted p, so it is super-uniform, and
b * u^(b-1) is a calibrator (Vovk and Wang, arXiv 1912.06116).

The four p-values are combined by Bonferroni, with `SHARES` of alpha. Without truncation no token is
outside the support, so its share goes to the other parts.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.logprob.profile import DriftProfile
from grpo_guard.logprob.scan import scan, scan_tails
from grpo_guard.logprob.stats import FLATTENINGS, Floats, TokenStats
from grpo_guard.nodes.e_process import log_shares

# A foreign phrase has few tokens; betting the whole stake on every token would cost too much.
SPARSE_SHARE = 0.05
TAIL_EXPONENT = 0.1
DENSE_CAP = 50.0  # maximum factor per token, because a single drifting token must not be decisive
COUNTS = (1, 2, 3, 5, 8)  # which of the largest gaps are tested: few large or many small gaps

# Support, surprise, scan, floor. The floor's own p-value, n * `floor_tail`, is far below alpha.
SHARES = (0.3, 0.3, 0.3, 0.1)
SHARES_UNTRUNCATED = (0.0, 0.15, 0.75, 0.1)

INSIDE, AMBIGUOUS, OUTSIDE = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Evidence:
    p_value: float  # combined, in [0, 1]
    unkeyed_p: float
    """The combined p-value without keyed shares. Repeated text gets the same shares, so only
    p-values without them may be multiplied over prompts and batches; otherwise shared luck would
    convict."""
    support_p: float  # p-value of the gaps, by Bonferroni over `COUNTS`
    surprise_p: float  # p-value of the e-process
    scan_p: float  # p-value of the least likely window
    floor_p: float  # p-value of the least likely token, 1 if no token is below the floor
    window: tuple[int, int]  # the least likely window of tokens, half-open
    zones: NDArray[np.int8]  # INSIDE, AMBIGUOUS or OUTSIDE the support, [n]
    weights: Floats  # each token's evidence against honesty, in nats, [n]; negative if in favour


def weigh(
    stats: TokenStats,
    profile: DriftProfile,
    sampling: SamplingSpec,
    *,
    shares: Floats | None = None,
) -> Evidence:
    """Weigh the evidence against honest sampling; ``stats`` must be free of NaN and not empty.

    ``shares`` are the scan's `keyed_shares`, shape [n]; without them, the test detects less.
    """
    n = len(stats)
    zones = np.where(stats.edge_gap > 0, AMBIGUOUS, INSIDE).astype(np.int8)
    zones[stats.edge_gap > profile.margins(stats.logit)] = OUTSIDE
    honest_rate = np.where(zones == OUTSIDE, profile.rate(stats.edge_gap), 1.0)
    ranked = np.sort(honest_rate)
    support = [
        binomial_tail(k, n, float(ranked[k - 1])) for k in COUNTS if k <= n and ranked[k - 1] < 1
    ]
    support_p = min(1.0, len(COUNTS) * min(support, default=1.0))
    surprise_p, log_factors = _surprise(stats, profile)
    # P(tail mass <= u) <= u for each of n tokens. A smaller tail is raised to the floor, because
    # how small it looks is determined by drift.
    least = float(stats.tail_mass.min())
    floor_p = min(1.0, n * profile.floor_tail) if least < profile.floor_tail else 1.0
    scanned = unkeyed = scan(scan_tails(stats, profile, sampling.temperature, None))
    if shares is not None:
        scanned = scan(scan_tails(stats, profile, sampling.temperature, shares))
    by_share = SHARES if sampling.truncates else SHARES_UNTRUNCATED
    p_value, unkeyed_p = (
        min(1.0, *(p / share for p, share in zip(parts, by_share, strict=True) if share))
        for parts in (
            (support_p, surprise_p, scan_p, floor_p)
            for scan_p in (scanned.p_value, unkeyed.p_value)
        )
    )
    return Evidence(
        p_value, unkeyed_p, support_p, surprise_p, scanned.p_value, floor_p, scanned.span, zones,
        log_factors - np.log(honest_rate),
    )  # fmt: skip


def _surprise(stats: TokenStats, profile: DriftProfile) -> tuple[float, Floats]:
    """Return the e-process p-value and each token's evidence against honesty, shape [n]."""
    tail = np.clip(stats.tail_mass, profile.least_tail, 1.0)
    by_tail = _sparse(TAIL_EXPONENT * tail ** (TAIL_EXPONENT - 1))
    log_p = np.maximum(stats.logprob - stats.log_set_mass, math.log(profile.least_tail))
    flat = [
        np.where(stats.in_set, (b - 1) * log_p - (normaliser - b * stats.log_set_mass), 0.0)
        for b, normaliser in zip(FLATTENINGS, stats.log_flat_mass.T, strict=True)
    ]
    bets = [by_tail, _sparse(np.exp(flat[0]))]
    bets += [np.minimum(factor, math.log(DENSE_CAP)) for factor in flat[1:]]
    # An average of fair bets is a fair bet, so they need no correction for multiplicity.
    log_e = np.logaddexp.reduce([_restarted(bet) for bet in bets], axis=0) - math.log(len(bets))
    return math.exp(-max(0.0, float(log_e.max()))), np.maximum(bets[0], bets[1])


def _sparse(factor: Floats) -> Floats:
    """Return the log factors of a bet with a small share of the stake."""
    log_factors: Floats = np.log1p(SPARSE_SHARE * (factor - 1))
    return log_factors


def _restarted(log_factors: Floats) -> Floats:
    """Return the log e-value after each token, reserve included, of an `EProcess` that treats each
    token as a batch."""
    paths = np.cumsum(log_factors)
    s = np.arange(len(paths))
    before = paths - log_factors
    begun = paths + np.logaddexp.accumulate(log_shares(s) - before)
    log_e: Floats = np.logaddexp(begun, -np.log(s + 2.0))  # the rest waits for later tokens
    return log_e


def binomial_tail(k: int, n: int, rate: float) -> float:
    """Return P(X >= k) for X ~ Binomial(n, rate), to full relative precision in the far tail.
    Raises ValueError unless 0 <= k <= n and 0 < rate < 1."""
    if not 0 <= k <= n or not 0 < rate < 1:
        raise ValueError(f"binomial_tail: expected 0 <= k <= n, 0 < rate < 1, got {k}, {n}, {rate}")
    if k == 0:
        return 1.0
    if k <= n * rate:  # most of the mass is in the upper tail, so sum the lower tail instead
        return max(0.0, 1.0 - _binomial_sum(range(k - 1, -1, -1), n, rate))
    return min(1.0, _binomial_sum(range(k, n + 1), n, rate))


def _binomial_sum(counts: range, n: int, rate: float) -> float:
    """Sum binomial probabilities over counts, moving away from the mode."""
    total = 0.0
    for k in counts:
        term = math.exp(
            math.lgamma(n + 1)
            - math.lgamma(k + 1)
            - math.lgamma(n - k + 1)
            + k * math.log(rate)
            + (n - k) * math.log1p(-rate)
        )
        total += term
        if term < total * 1e-17:
            break
    return total


def heaviest_span(weights: Floats) -> tuple[int, int]:
    """Return the non-empty, half-open token span with the largest total weight (Kadane)."""
    best, best_span, total, start = -math.inf, (0, 1), 0.0, 0
    for i, weight in enumerate(weights.tolist()):
        if total <= 0:
            total, start = 0.0, i
        total += weight
        if total > best:
            best, best_span = total, (start, i + 1)
    return best_span
