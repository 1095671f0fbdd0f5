"""The null distribution of the largest excursion in honest text, as a function of text length.

For a long sequence of n independent scores x with negative mean, the sum M of the largest run
follows P(M >= s) = 1 - exp(-K n exp(-rate s)), where ``rate`` is the positive root of
E[exp(rate x)] = 1 (Karlin and Altschul 1990; the CUSUM's false-alarm theory has the same root). The
distribution of rate * M - log n therefore no longer depends on the length. Tokens are not
independent, so the theory only sets the scale, and the p-value is counted on honest completions.

The p-value is conformal. With n honest completions of the same kind, p = (1 + the number that score
at least as high) / (n + 1) is super-uniform for another such completion. This p is never below
1 / (n + 1), so rejecting at the 0.001 level takes at least 999 honest completions.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grpo_guard.logprob.stats import Floats

# Share of the calibration scores used to fit the tail, and the minimum number of scores in it.
TAIL_SHARE = 0.1
FEWEST_IN_TAIL = 20
_Z95 = 1.6448536269514722


@dataclass(frozen=True, slots=True)
class Excursion:
    """The run of scores with the largest sum; of equal ones, the first to end, then the shorter."""

    value: float  # the run's sum; 0 if no score is above zero
    start: int
    end: int  # one past the run's last score; equal to ``start`` if the sum is 0


def cusum(scores: Floats) -> Excursion:
    """Find the run with the largest sum in ``scores``, shape [n]; ordinary scores must be negative.

    This is the maximum of the upper CUSUM, S_t = max(0, S_{t-1} + x_t) (Page 1954). A mean over the
    whole sequence would dilute a short run, and a window of fixed width only fits runs of that
    width. Raises ValueError unless the scores are one row of finite numbers.
    """
    x = np.asarray(scores, dtype=np.float64)
    if x.ndim != 1 or not np.isfinite(x).all():
        raise ValueError("scores: expected one row of finite numbers")
    sums = np.concatenate([[0.0], np.cumsum(x, dtype=np.float64)])
    lowest = np.minimum.accumulate(sums)
    risen = sums - lowest
    end = int(risen.argmax())
    # The last position where the cumulative sum was at its lowest, to get the shortest run.
    start = int(np.flatnonzero(sums[: end + 1] == lowest[end])[-1])
    return Excursion(float(risen[end]), start, end)


def decay_rate(scores: Floats) -> float:
    """Return the positive root of mean(exp(rate * scores)) = 1, for honest tokens' scores, [n];
    raises ValueError if there is none."""
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
    """Convert the sum of the largest run to a scale independent of the text's length in tokens;
    ``rate`` comes from `decay_rate`."""
    return rate * value - math.log(length)


def conformal(score: float, honest: Sequence[float]) -> float:
    """Return (1 + number of honest scores >= ``score``) / (n + 1), for n ascending scores."""
    return (1 + len(honest) - bisect_left(honest, score)) / (len(honest) + 1)


@dataclass(frozen=True, slots=True)
class ExponentialTail:
    """An exponential tail beyond the calibration scores: an assumption rather than a count."""

    start: float  # score at which the tail begins
    share: float  # share of honest scores above ``start``, as a conformal p-value
    mean_excess: float  # their mean distance above ``start``; upper 95 % confidence limit

    @classmethod
    def fit(cls, honest: Sequence[float]) -> "ExponentialTail | None":
        """Fit the tail to the highest tenth of the honest scores, which must be in ascending order;
        None if that tenth has too few."""
        count = int(len(honest) * TAIL_SHARE)
        if count < FEWEST_IN_TAIL:
            return None
        start = honest[len(honest) - count - 1]
        total = sum(score - start for score in honest[-count:])
        # 2 * total / mean is chi-squared with 2 * count degrees of freedom; its 5 % quantile is
        # approximated as in Wilson and Hilferty (1931).
        degrees = 2 * count
        scale = 2 / (9 * degrees)
        quantile = degrees * (1 - scale - _Z95 * math.sqrt(scale)) ** 3
        return cls(start, (count + 1) / (len(honest) + 1), max(2 * total / quantile, 1e-9))

    def p_value(self, score: float) -> float:
        """Return the probability of a score at least as high; valid only above ``start``."""
        return self.share * math.exp(-max(0.0, score - self.start) / self.mean_excess)
