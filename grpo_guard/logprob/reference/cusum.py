"""CUSUM: where a sequence of scores runs high for longer than chance lets it (Page 1954).

The upper CUSUM is S_0 = 0, S_t = max(0, S_{t-1} + x_t), and its maximum is the largest sum of any
run of consecutive scores. That run is the span. A mean over the whole sequence would dilute a short
run among everything that is usual, and a window of fixed width fits only runs of that width.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grpo_guard.logprob.stats import Floats


@dataclass(frozen=True, slots=True)
class Excursion:
    """The largest run of a CUSUM.

    Args:
        value: Its sum, >= 0; 0 where no score is above zero.
        start: First score of the run.
        end: The one behind its last; equal to ``start`` where ``value`` is 0. Of runs of equal
            sum, the earliest to end and of these the shortest.
    """

    value: float
    start: int
    end: int


def cusum(scores: Floats) -> Excursion:
    """The largest run of scores, from which what is usual was subtracted: usual ones drift down.

    Args:
        scores: Finite, shape [n]; n may be 0.

    Raises:
        ValueError: a score is not finite.
    """
    x = np.asarray(scores, dtype=np.float64)
    if x.ndim != 1 or not np.isfinite(x).all():
        raise ValueError("scores: expected one row of finite numbers")
    sums = np.concatenate([[0.0], np.cumsum(x, dtype=np.float64)])
    lowest = np.minimum.accumulate(sums)
    risen = sums - lowest
    end = int(risen.argmax())
    # Of the places where the sum stood as low, the last.
    start = int(np.flatnonzero(sums[: end + 1] == lowest[end])[-1])
    return Excursion(float(risen[end]), start, end)
