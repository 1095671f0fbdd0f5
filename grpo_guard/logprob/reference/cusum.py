"""CUSUM: where a sequence of scores runs high for longer than chance lets it (Page 1954).

The upper CUSUM is S_0 = 0, S_t = max(0, S_{t-1} + x_t), and its maximum is the largest sum of any
run of consecutive scores. That run is the span. A mean over the whole sequence would dilute a short
run among everything that is usual, and a window of fixed width fits only runs of that width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from grpo_guard.logprob.stats import Floats

Side: TypeAlias = Literal["upper", "lower", "both"]


@dataclass(frozen=True, slots=True)
class Excursion:
    """The largest run of a CUSUM.

    Args:
        value: Its sum, >= 0; 0 where no score is on this side of zero.
        start: First score of the run.
        end: The one behind its last; equal to ``start`` where ``value`` is 0. Of runs of equal
            sum, the earliest to end and of these the shortest.
        side: ``"upper"``, or ``"lower"`` for a run of low scores, whose sum is taken negative.
    """

    value: float
    start: int
    end: int
    side: Literal["upper", "lower"] = "upper"


def path(scores: Floats) -> Floats:
    """The upper CUSUM behind each score: S_1 ... S_n, shape [n] -> [n]."""
    sums = _sums(scores)
    risen: Floats = (sums - np.minimum.accumulate(sums))[1:]
    return risen


def cusum(scores: Floats, reference: float = 0.0, side: Side = "upper") -> Excursion:
    """The largest run of scores above ``reference`` (below it, for ``"lower"``).

    Args:
        scores: Finite, shape [n]; n may be 0.
        reference: What is usual: subtracted from each score, so that usual scores drift down.
        side: ``"both"`` takes the larger of the two, the upper of equals.

    Raises:
        ValueError: a score is not finite, or no such side.
    """
    x = np.asarray(scores, dtype=np.float64) - reference
    if x.ndim != 1 or not np.isfinite(x).all():
        raise ValueError("scores: expected one row of finite numbers")
    if side not in ("upper", "lower", "both"):
        raise ValueError(f"side: expected 'upper', 'lower' or 'both', got {side!r}")
    if side == "lower":
        return _largest(-x, "lower")
    upper = _largest(x, "upper")
    if side == "upper":
        return upper
    lower = _largest(-x, "lower")
    return lower if lower.value > upper.value else upper


def _largest(x: Floats, side: Literal["upper", "lower"]) -> Excursion:
    sums = _sums(x)
    lowest = np.minimum.accumulate(sums)
    risen = sums - lowest
    end = int(risen.argmax())
    # Of the places where the sum stood as low, the last.
    start = int(np.flatnonzero(sums[: end + 1] == lowest[end])[-1])
    return Excursion(float(risen[end]), start, end, side)


def _sums(x: Floats) -> Floats:
    return np.concatenate([[0.0], np.cumsum(x, dtype=np.float64)])
