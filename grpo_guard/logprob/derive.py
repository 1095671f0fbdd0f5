"""Derive the numbers of a drift profile from statistics of honest tokens.

Any number the data can bound replaces the base profile's, whether larger or smaller. An event that
was never observed is bounded only by the token count, at about 3 / tokens; the smaller of that
bound and the base profile's number is then used, unless the data contradict the base profile where
the two can be compared.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from grpo_guard.logprob.evidence import binomial_tail
from grpo_guard.logprob.profile import FLOAT32, DriftProfile
from grpo_guard.logprob.profile_file import (
    Drift,
    EdgeGaps,
    GapRate,
    Numbers,
    Setting,
    Source,
    TailCount,
)
from grpo_guard.logprob.replay.evidence import Replayed
from grpo_guard.logprob.stats import Floats

MARGINS = (0.0, 0.05, 0.1, 0.15, 0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 4.0, 8.0)
# Beyond the largest margin observed, rates fall tenfold every `DECADE` raw logits: a third as fast
# as SmolLM2's rates fall between fp32 and rounded bf16.
DECADE, LEAST_RATE = 0.25, 1e-15
GAPS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 4.5, 6.0, 9.0)
TAILS = tuple(10.0**-k for k in range(1, 9))
MOST_OUTSIDE = 0.5  # a gap exceeded by more than this share of tokens is not drift
TAU_FACTOR = 1.5  # as in the built-in bfloat16 profile
# A median difference above this, in nats, is not drift but a different kind of log-prob: raw rather
# than at the declared temperature, or renormalised after truncation.
MOST_TYPICAL_DRIFT = 0.1


@dataclass(frozen=True, slots=True)
class HonestTokens:
    edge_gap: Floats  # distance outside the support, in raw logits, [N]
    tail_mass: Floats  # total probability of all tokens no likelier, itself included, [N]
    drift: Floats  # sampler's log-prob minus the scorer's at that temperature, nats, [M], M <= N
    replayed: Sequence[Replayed] = ()  # one per completion if a coin was replayed


def derive(tokens: HonestTokens, base: DriftProfile, temperature: float) -> Numbers:
    """Derive a profile's numbers, along with their sources; raises the errors of `gap_rates` and
    `replay_rates`."""
    contradicted = [c.at_most for c in tail_counts(tokens.tail_mass) if c.exceeds]
    floor_seen = bool((tokens.tail_mass < base.floor_tail).any())
    return Numbers(
        rates=gap_rates(tokens.edge_gap, base),
        # A count over all tokens cannot tell ``ulps`` and ``mass_margin`` apart. Gaps are measured
        # after widening top-p by ``mass_margin``, so the rates cover the rest.
        ulps=_inherited(base.ulps),
        mass_margin=_inherited(base.mass_margin),
        least_tail=(
            Setting(value=min(1.0, 10 * max(contradicted)), source="measured")
            if contradicted and 10 * max(contradicted) > base.least_tail
            else _inherited(base.least_tail)
        ),
        floor_tail=(
            Setting(value=0.0, source="measured") if floor_seen else _inherited(base.floor_tail)
        ),
        tau=_tau(tokens.drift, base, temperature),
        replay=replay_rates(tokens.replayed, base) if tokens.replayed else (),
    )


def replay_rates(replayed: Sequence[Replayed], base: DriftProfile) -> tuple[GapRate, ...]:
    """Return 95 % upper bounds on the share of honest tokens with each replay margin or more.
    Raises ValueError if half or more of the informative tokens mismatch."""
    excess = joined([r.excess for r in replayed])
    informative = sum(int(r.informative.sum()) for r in replayed)
    mismatches = sum(int((r.excess[r.informative] > 0).sum()) for r in replayed)
    if mismatches >= MOST_OUTSIDE * max(1, informative):
        raise ValueError(
            f"coin: {mismatches} of {informative} informative tokens differ from those that the "
            "seeds draw; expected honest completions of this run, sampler and policy"
        )
    margins = sorted({*MARGINS, *dict(base.replay)})
    return tuple(
        _bounds(
            [
                _Seen(
                    m,
                    int((excess >= m).sum()) if m > 0 else mismatches,
                    len(excess) if m > 0 else informative,
                    min((rate for gap, rate in base.replay if gap <= m), default=1.0),
                )
                for m in margins
            ],
            # A bound from the count alone would let one token with any margin pass for free in a
            # long completion.
            extrapolated=True,
        )
    )


def gap_rates(edge_gap: Floats, base: DriftProfile) -> tuple[GapRate, ...]:
    """Return 95 % upper bounds on the share of honest tokens with each edge gap or more; raises
    ValueError if half or more of the tokens lie outside the declared support."""
    n = len(edge_gap)
    gaps = np.array(sorted({*GAPS, *(gap for gap, _ in base.rates)}))
    seen = [
        _Seen(gap, int((edge_gap >= gap).sum()), n, rate)
        for gap, rate in zip(gaps.tolist(), base.rate(gaps).tolist(), strict=True)
    ]
    rates = tuple(r for r in _bounds(seen, extrapolated=False) if r.rate < MOST_OUTSIDE)
    outside = int((edge_gap > 0).sum())
    if not rates or outside >= MOST_OUTSIDE * n:
        raise ValueError(
            f"sampling: {outside} of {n} tokens lie outside the declared support; expected honest "
            "completions of this sampler and policy"
        )
    return rates


class _Seen(NamedTuple):
    """Of ``n`` tokens, ``k`` lie at least ``gap`` outside; the base profile allows ``rate``."""

    gap: float
    k: int
    n: int
    rate: float


def _bounds(seen: Sequence[_Seen], *, extrapolated: bool) -> list[GapRate]:
    """Bound the share of tokens with each gap or more. Larger gaps are rarer, so the bounds never
    rise."""
    # If honest tokens stray further than the base profile allows, its rates for large gaps are no
    # guide.
    guide = not any(n and lower_bound(k, n) > rate for _, k, n, rate in seen)
    rates: list[GapRate] = []
    last: GapRate | None = None
    for gap, k, n, inherited in seen:
        bound = upper_bound(k, n) if n else MOST_OUTSIDE  # n = 0: the policy was never unsure
        source: Source = "measured" if k else "count"
        if not k and guide and inherited < bound:
            bound, source = inherited, "inherited"
        if not k and extrapolated and last is not None:
            decline = last.rate * 10 ** (-(gap - last.gap) / DECADE)
            if decline < bound:
                bound, source = max(decline, LEAST_RATE), "extrapolated"
        bound = min(bound, rates[-1].rate) if rates else bound
        rates.append(GapRate(gap=gap, rate=bound, seen=k, source=source))
        last = rates[-1] if k else last
    return rates


def tail_counts(tail_mass: Floats) -> tuple[TailCount, ...]:
    """Count the tail masses up to each power of ten and compare the counts with honest sampling, at
    99.9 % confidence because there are several comparisons."""
    n = len(tail_mass)
    seen = [(tail, int((tail_mass <= tail).sum())) for tail in TAILS]
    return tuple(
        TailCount(at_most=tail, seen=k, exceeds=lower_bound(k, n, 0.999) > tail) for tail, k in seen
    )


def edge_gaps(edge_gap: Floats) -> EdgeGaps:
    """Return the distribution of the edge gaps above 0."""
    outside = edge_gap[edge_gap > 0]
    quantiles = _quantiles(outside) if len(outside) else dict.fromkeys(("p50", "p95", "p99", "max"))
    return EdgeGaps(outside=len(outside), **quantiles)


def drift_of(drift: Floats) -> Drift | None:
    """Return the distribution of the drift, or None if no log-probs were sent."""
    if not len(drift):
        return None
    return Drift(
        tokens=len(drift),
        **_quantiles(np.abs(drift)),
        lowest=float(drift.min()),
        highest=float(drift.max()),
        used_for_tau=_comparable(drift),
    )


def _tau(drift: Floats, base: DriftProfile, temperature: float) -> Setting:
    if not _comparable(drift):
        return _inherited(base.tau)
    largest = TAU_FACTOR * float(np.abs(drift).max()) * temperature
    # Rare tokens drift most, and few were observed: never go below the smallest built-in allowance.
    return Setting(value=max(FLOAT32.tau, largest), source="measured")


def _comparable(drift: Floats) -> bool:
    return bool(len(drift)) and float(np.median(np.abs(drift))) <= MOST_TYPICAL_DRIFT


def _quantiles(values: Floats) -> dict[str, float]:
    p50, p95, p99, largest = np.quantile(values, (0.5, 0.95, 0.99, 1.0)).tolist()
    return {"p50": p50, "p95": p95, "p99": p99, "max": largest}


def _inherited(value: float) -> Setting:
    return Setting(value=value if math.isfinite(value) else None, source="inherited")


def joined(parts: Sequence[Floats]) -> Floats:
    """Concatenate arrays, returning an empty array if there are none."""
    return np.concatenate(parts) if parts else np.zeros(0)


def upper_bound(hits: int, total: int, confidence: float = 0.95) -> float:
    """Return the one-sided upper confidence bound on a rate, exact (Clopper and Pearson 1934). With
    no hits it is about 3 / total at 95 %. Raises ValueError unless ``0 <= hits <= total >= 1``."""
    _require(hits, total)
    if hits == total:
        return 1.0
    if hits == 0:
        return -math.expm1(math.log1p(-confidence) / total)
    # The bound is the rate at which `hits` or fewer have probability 1 - confidence.
    low, high = hits / total, 1.0 - 1e-15
    for _ in range(100):
        middle = (low + high) / 2
        enough = binomial_tail(hits + 1, total, middle) >= confidence
        low, high = (low, middle) if enough else (middle, high)
    return high


def lower_bound(hits: int, total: int, confidence: float = 0.95) -> float:
    """Return the one-sided Clopper-Pearson lower confidence bound on a rate; see `upper_bound`."""
    _require(hits, total)
    if hits == 0:
        return 0.0
    # The bound is the rate at which `hits` or more have probability 1 - confidence; found in log
    # space, for far tails.
    low, high = math.log(1e-30), math.log(hits / total)
    for _ in range(100):
        middle = (low + high) / 2
        too_much = binomial_tail(hits, total, min(math.exp(middle), 1 - 1e-15)) > 1 - confidence
        low, high = (low, middle) if too_much else (middle, high)
    return math.exp(low)


def wilson(hits: int, total: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the two-sided Wilson score interval (low, high) for a rate (Wilson 1927)."""
    _require(hits, total)
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    rate, z2 = hits / total, z * z
    centre = (rate + z2 / (2 * total)) / (1 + z2 / total)
    half = z / (1 + z2 / total) * math.sqrt(rate * (1 - rate) / total + z2 / (4 * total**2))
    # At both ends the bound is exact; rounding must not push it past the estimate.
    low = 0.0 if hits == 0 else max(0.0, centre - half)
    return low, 1.0 if hits == total else min(1.0, centre + half)


def _require(hits: int, total: int) -> None:
    if not 0 <= hits <= total or total < 1:
        raise ValueError(f"hits, total: expected 0 <= hits <= total >= 1, got {hits}, {total}")
