"""Intervals, since a rate or a mean is never reported without one, and the area under a ROC.

The sums are scipy's, which the extra ``evals`` brings. It is imported at the first call: much that
only names an `Interval` would otherwise wait a second for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np
from numpy.typing import ArrayLike


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


def student_t(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Student's t interval of a mean; of equal values it has no width.

    Args:
        values: Independent observations, shape [n], n >= 2; finite.
        confidence: Two-sided, in (0, 1).

    Raises:
        ValueError: fewer than two values, one that is not finite, or an argument out of range.
    """
    if len(values) < 2 or not all(map(math.isfinite, values)):
        raise ValueError(f"values: expected at least 2 finite numbers, got {len(values)} values")
    _check(confidence)
    from scipy.stats import t

    mean = fmean(values)
    half = t.ppf((1 + confidence) / 2, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - float(half), mean + float(half))


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
