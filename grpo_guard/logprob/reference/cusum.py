"""CUSUM: find where a sequence of scores stays high for longer than chance allows (Page 1954).

The upper CUSUM is S_0 = 0, S_t = max(0, S_{t-1} + x_t), and its maximum is the largest sum over any
run of consecutive scores. That run is the span. A mean over the whole sequence would dilute a short
run among ordinary scores, and a fixed-width window only fits runs of that width.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grpo_guard.logprob.stats import Floats


@dataclass(frozen=True, slots=True)
class Excursion:
    """The run of scores with the largest sum. Ties are broken in favour of the run that ends first,
    then the shortest."""

    value: float  # the run's sum; 0 if no score is above zero
    start: int
    end: int  # one past the run's last score; equal to ``start`` if the sum is 0


def cusum(scores: Floats) -> Excursion:
    """Find the run with the largest sum in ``scores``, shape [n]; ordinary scores must be negative.

    Raises:
        ValueError: the scores are not one-dimensional, or a score is not finite.
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
