"""verl: a graded trajectory on its way to the collector, and what comes back."""

from __future__ import annotations

import math
from dataclasses import dataclass

from grpo_guard.adapters.received import Row
from grpo_guard.verdict import Cause, Outcome


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One rollout that was graded and waits for its verdict.

    Args:
        uid, step: What it has in common with its siblings.
        siblings: How many there are, itself among them.
        rows: All that it trains on; at least one.
        score: The reward function's; None = it gave none, or a number that is not finite.
        timeout: Seconds that it waits for the others.
    """

    uid: str
    step: int | None
    siblings: int
    rows: tuple[Row, ...]
    score: float | None
    timeout: float

    @property
    def tokens(self) -> int:
        """How much room it takes while it waits."""
        completions = [row.completion for row in self.rows]
        return sum(len(c.prompt_ids or ()) + len(c.completion_ids or ()) for c in completions)


@dataclass(frozen=True, slots=True)
class Settled:
    """What a trajectory earns.

    Args:
        score: Finite. Of one that is left out, the mean of those that stay, 0 where none does.
        left_out: It is to train nothing.
        outcome, cause: Of its verdict.
        together: How many were judged as one group.
    """

    score: float
    left_out: bool
    outcome: Outcome
    cause: Cause
    together: int


def finite(score: float | None) -> float | None:
    """A reward that a group's mean survives; None where it is none."""
    return score if score is not None and math.isfinite(score) else None
