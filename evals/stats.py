"""Intervals, since a rate or a mean is never reported without one, and the area under a ROC.

The sums are scipy's, which the extra ``evals`` brings. It is imported at the first call: much that
only names an `Interval` would otherwise wait a second for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

_RESAMPLED_AT_ONCE: Final = 1_000_000
"""Numbers drawn in one go: [resamples, n] at once would be gigabytes for a long run."""


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
    _check(confidence)
    if total == 0:
        return Interval(math.nan, 0.0, 1.0)
    from scipy.stats import binomtest

    found = binomtest(hits, total).proportion_ci(confidence, method="wilson")
    return Interval(hits / total, float(found.low), float(found.high))


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
    _check(confidence)
    mean = float(data.mean())
    if len(data) == 1:
        return Interval(mean, mean, mean)
    from scipy.stats import bootstrap

    low, high = bootstrap(
        (data,),
        np.mean,
        n_resamples=resamples,
        batch=max(1, _RESAMPLED_AT_ONCE // len(data)),
        confidence_level=confidence,
        method="percentile",
        rng=seed,
    ).confidence_interval
    return Interval(mean, min(float(low), mean), max(float(high), mean))


def auroc(low: ArrayLike, high: ArrayLike) -> float:
    """Chance that a number of ``high`` is larger than one of ``low``; ties count half.

    Args:
        low: Shape [m], m >= 1.
        high: Shape [n], n >= 1.
    """
    from scipy.stats import mannwhitneyu

    pairs = np.size(low) * np.size(high)
    # The exact method would only cost time: the p-value is not used.
    return float(mannwhitneyu(high, low, method="asymptotic").statistic) / pairs


def _check(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence: expected a number in (0, 1), got {confidence}")
