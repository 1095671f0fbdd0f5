"""Confidence intervals for a binomial rate, without scipy."""

from __future__ import annotations

import math
from statistics import NormalDist

from grpo_guard.logprob.evidence import binomial_tail


def upper_bound(hits: int, total: int, confidence: float = 0.95) -> float:
    """Return the one-sided upper confidence bound on a rate, exact (Clopper and Pearson 1934).

    With no hits the bound is 1 - (1 - confidence)^(1/total), about 3 / total at 95 %.

    Raises:
        ValueError: ``0 <= hits <= total`` or ``total >= 1`` does not hold.
    """
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
