"""The self-test for ``profile="bitwise"``: do two engines compute the same bits?"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.scorers.base import Scorer


@dataclass(frozen=True, slots=True)
class BitwiseReport:
    """The agreement of two scorers on the same tokens."""

    tokens: int  # number of tokens compared, over all comparisons
    differing: int  # number of tokens that differ in log-prob, raw logit or support
    largest: float  # largest difference in log-prob, in nats
    where: str | None  # first difference: "batching" (one engine against itself) or "engines"

    @property
    def deserved(self) -> bool:
        """Whether honest work would pass under ``profile="bitwise"``, judging by this sample."""
        return self.tokens > 0 and self.differing == 0


def same_bits(
    first: Scorer, second: Scorer, sequences: Sequence[Encoded], sampling: SamplingSpec
) -> BitwiseReport:
    """Score sequences with both scorers, plus one by one with the first, and compare every bit.

    Pass a few hundred completions of the lengths you train on, because the choice of kernels
    depends on shapes. ``second`` is, say, a client of the engine that samples; pass ``first`` again
    to compare an engine only with itself.

    Raises:
        ValueError: ``sequences`` is empty; also the errors of `Scorer.score`.
    """
    if not sequences:
        raise ValueError("sequences: expected at least one, got none")
    ours = first.score(sequences, sampling)
    sides = [("batching", s) for one in sequences for s in first.score([one], sampling)]
    sides += [("engines", s) for s in second.score(sequences, sampling)]
    tokens, differing, largest, where = 0, 0, 0.0, None
    for (place, theirs), mine in zip(sides, [*ours, *ours], strict=True):
        gap = np.abs(mine.logprob - theirs.logprob)
        gap[mine.logprob == theirs.logprob] = 0.0  # -inf on both sides
        other = (gap > 0) | (mine.logit != theirs.logit) | (mine.edge_gap != theirs.edge_gap)
        tokens, differing = tokens + len(other), differing + int(other.sum())
        largest = max(largest, float(gap.max()))
        where = where or (place if other.any() else None)
    return BitwiseReport(tokens, differing, largest, where)
