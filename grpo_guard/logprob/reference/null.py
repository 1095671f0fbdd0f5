"""The null distribution of the largest excursion in honest text, as a function of its length.

The largest run of n independent scores with negative mean follows, for long sequences,
P(M >= s) = 1 - exp(-K n exp(-rate s)), where ``rate`` is the positive root of E[exp(rate x)] = 1
(Karlin and Altschul 1990; the CUSUM's false-alarm theory has the same root). So rate * M - log n is
one score whose distribution no longer depends on the length. Tokens are not independent; the
theory only chooses the scale, and the p-value is counted on honest completions.

Conformal: with n honest completions of the same kind, p = (1 + number that score at least as high)
/ (n + 1) is super-uniform for one more. It is never below 1 / (n + 1), so rejecting at 0.001 takes
at least 999 honest completions.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grpo_guard.logprob.stats import Floats

# Share of the calibration scores used to fit the tail, and the smallest number of them.
TAIL_SHARE = 0.1
FEWEST_IN_TAIL = 20
_Z95 = 1.6448536269514722


def decay_rate(scores: Floats) -> float:
    """The positive root of mean(exp(rate * scores)) = 1, for scores of honest tokens, shape [n].

    Raises:
        ValueError: the mean is not negative or no score is positive, so there is no root.
    """
    x = np.asarray(scores, dtype=np.float64)
    if not len(x) or x.mean() >= 0 or x.max() <= 0:
        raise ValueError("scores: expected a negative mean and some positive scores")
    low, high = 0.0, 1.0
    while np.mean(np.exp(np.minimum(high * x, 700.0))) < 1:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        below = np.mean(np.exp(np.minimum(middle * x, 700.0))) < 1
        low, high = (middle, high) if below else (low, middle)
    return high


def length_free(value: float, length: int, rate: float) -> float:
    """Convert the largest run's sum to the scale that does not depend on the length (>= 1)."""
    return rate * value - math.log(length)


def conformal(score: float, honest: Sequence[float]) -> float:
    """(1 + number of n honest scores, ascending, >= ``score``) / (n + 1)."""
    return (1 + len(honest) - bisect_left(honest, score)) / (len(honest) + 1)


@dataclass(frozen=True, slots=True)
class ExponentialTail:
    """An exponential continuation beyond the calibration scores: an assumption, not a count."""

    start: float  # score from which it was fitted
    share: float  # share of honest scores beyond it, as a conformal p-value
    mean_excess: float  # how far beyond it they lie on average: the upper 95 % confidence limit

    @classmethod
    def fit(cls, honest: Sequence[float], fewest: int = FEWEST_IN_TAIL) -> ExponentialTail | None:
        """Fit it to the highest tenth of honest scores (ascending); None if under ``fewest``."""
        count = int(len(honest) * TAIL_SHARE)
        if count < fewest:
            return None
        start = honest[len(honest) - count - 1]
        total = sum(score - start for score in honest[-count:])
        # 2 * total / mean is chi-squared with 2 * count degrees; its 5 % quantile by Wilson and
        # Hilferty (1931).
        degrees = 2 * count
        scale = 2 / (9 * degrees)
        quantile = degrees * (1 - scale - _Z95 * math.sqrt(scale)) ** 3
        return cls(start, (count + 1) / (len(honest) + 1), max(2 * total / quantile, 1e-9))

    def p_value(self, score: float) -> float:
        """Chance of a score at least as high; valid only beyond ``start``."""
        return self.share * math.exp(-max(0.0, score - self.start) / self.mean_excess)
