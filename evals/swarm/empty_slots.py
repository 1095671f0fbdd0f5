"""Slots that a node left empty: no verdict is asked of them, and the update goes without."""

from __future__ import annotations

from collections.abc import Sequence

from grpo_guard.evals.swarm.record import Submitted
from grpo_guard.guard import Review
from grpo_guard.verdict import Cause, abstain


def with_empty_slots(review: Review, submitted: Sequence[Submitted]) -> Review:
    """A review of what was sent, stretched over all slots."""
    if not any(item.withheld for item in submitted):
        return review
    verdicts, factors = iter(review.verdicts), iter(review.length_factors or ())
    empty = abstain("exchange", Cause.NOT_APPLICABLE, "nothing was sent")
    return Review(
        [empty if item.withheld else next(verdicts) for item in submitted],
        review.metrics,
        None
        if review.length_factors is None
        else [1.0 if item.withheld else next(factors) for item in submitted],
    )
