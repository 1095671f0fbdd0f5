"""Intervals: a rate or a mean is never reported without one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with the two ends of its interval."""

    value: float
    low: float
    high: float


def wilson(hits: int, total: int, confidence: float = 0.95) -> Interval:
    """Wilson score interval of a rate (Wilson 1927, without continuity correction).

    Unlike the textbook interval it is not empty when ``hits`` is 0 or ``total``, which is where
    false-positive rates live. No observations give the whole of [0, 1] around NaN.

    Args:
        hits: Successes, 0 <= hits <= total.
        total: Trials.
        confidence: Two-sided, in (0, 1).

    Raises:
        ValueError: an argument is out of range.
    """
    if not 0 <= hits <= total:
        raise ValueError(f"hits: expected 0 <= hits <= total, got {hits} of {total}")
    z = NormalDist().inv_cdf(0.5 + _checked(confidence) / 2)
    if total == 0:
        return Interval(math.nan, 0.0, 1.0)
    rate, z2 = hits / total, z * z
    centre = (rate + z2 / (2 * total)) / (1 + z2 / total)
    half = z / (1 + z2 / total) * math.sqrt(rate * (1 - rate) / total + z2 / (4 * total**2))
    # At the two ends the bound is exact; rounding must not put it beside the estimate.
    low = 0.0 if hits == 0 else max(0.0, centre - half)
    high = 1.0 if hits == total else min(1.0, centre + half)
    return Interval(rate, low, high)


def bootstrap_mean(
    values: Sequence[float], *, seed: int = 0, confidence: float = 0.95, resamples: int = 10_000
) -> Interval:
    """Percentile bootstrap interval of a mean.

    Args:
        values: Independent observations, shape [n], n >= 1; finite.
        seed: Equal seeds give equal intervals.
        confidence: Two-sided, in (0, 1).
        resamples: Number of bootstrap samples.

    Raises:
        ValueError: no values, a value that is not finite, or an argument out of range.
    """
    data = np.asarray(values, dtype=np.float64)
    if data.ndim != 1 or not len(data) or not np.isfinite(data).all():
        raise ValueError("values: expected a list of finite numbers that is not empty")
    if resamples < 1:
        raise ValueError(f"resamples: expected an integer >= 1, got {resamples}")
    tail = (1 - _checked(confidence)) / 2
    rng = np.random.default_rng(seed)
    # One row at a time: [resamples, n] at once would be gigabytes for a long run.
    means = np.array([data[rng.integers(0, len(data), len(data))].mean() for _ in range(resamples)])
    low, high = np.quantile(means, (tail, 1 - tail))
    mean = float(data.mean())
    return Interval(mean, min(float(low), mean), max(float(high), mean))


def _checked(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence: expected a number in (0, 1), got {confidence}")
    return confidence
