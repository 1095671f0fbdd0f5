"""The result of guarding one batch, and the only code that creates one.

`settle` compares rewards within groups. If a review lost its groups, `settle` would treat the whole
batch as one group and measure a rejected completion by the lowest reward of another prompt. So
reviews are created by `Review.of`, and are cut, joined or regrouped only by methods of `Review`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from grpo_guard.core.completion import Completion
from grpo_guard.core.rollouts import groups_of, rollouts_of
from grpo_guard.core.verdict import Cause, Outcome, Verdict, abstain
from grpo_guard.guard.metrics import length_figures, metrics

logger = logging.getLogger("grpo_guard")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Review:
    """The result of guarding one batch.

    Args:
        verdicts: One verdict per completion, in order.
        metrics: Figures to log, by name.
        length_factors: Factors in [0, 1] for positive rewards, one per completion; None if the
            policy does not scale the rewards of long completions.
        groups: The group of each completion; completions with the same value answer the same
            prompt. None if all of them do. Groups are never the senders' labels: poison sent along
            with its own clean copy under a label "mine" would be compared with that copy alone.
        labels: The senders' labels, one per completion, or None.
        rollouts: The rollout that each completion is a segment of; None for a completion that is a
            rollout by itself. None instead of the list if no completion names a rollout.
    """

    verdicts: list[Verdict]
    metrics: dict[str, float]
    length_factors: list[float] | None = None
    groups: list[Hashable] | None = None
    labels: list[Hashable] | None = None
    rollouts: list[Hashable] | None = None

    def __str__(self) -> str:
        """One line with the count of each outcome and the first rejection."""
        outcomes = Counter(verdict.outcome for verdict in self.verdicts)
        words = ("accepted", "rejected", "abstained")
        counts = ", ".join(
            f"{outcomes[one]} {word}" for one, word in zip(Outcome, words, strict=True)
        )
        first = next((f"; [{i}] {v}" for i, v in enumerate(self.verdicts) if v.rejected), "")
        n = len(self.verdicts)
        return f"{n} completion{'' if n == 1 else 's'}: {counts}{first}"

    @classmethod
    def of(
        cls,
        batch: Sequence[Completion],
        verdicts: Sequence[Verdict],
        metrics: dict[str, float],
        length_factors: Sequence[float] | None = None,
    ) -> Review:
        """Create the review of n completions, grouped by prompt (`groups_of`). The figures of
        `length_figures` are added to the metrics."""
        rollouts = rollouts_of(batch)
        return cls(
            list(verdicts),
            metrics | length_figures(verdicts, length_factors),
            None if length_factors is None else list(length_factors),
            groups=groups_of(batch, rollouts),
            labels=[c.group for c in batch],
            rollouts=rollouts,
        )

    @classmethod
    def joined(cls, parts: Sequence[Review]) -> Review:
        """Concatenate reviews in order, dropping their metrics.

        Groups with the same name become one group. If any part has no groups or no labels, neither
        does the result; a part without length factors is not scaled.
        """
        factors = [
            factor for part in parts for factor in part.length_factors or [1.0] * len(part.verdicts)
        ]
        scaled = any(part.length_factors is not None for part in parts)
        return cls(
            [verdict for part in parts for verdict in part.verdicts],
            {},
            factors if scaled else None,
            groups=_all([part.groups for part in parts]),
            labels=_all([part.labels for part in parts]),
            rollouts=_segments(parts),
        )

    def at(self, places: Sequence[int]) -> Review:
        """Select the completions at the given indices, in that order, without metrics."""

        def of(column: list[T] | None) -> list[T] | None:
            return None if column is None else [column[i] for i in places]

        verdicts = [self.verdicts[i] for i in places]
        factors, groups = of(self.length_factors), of(self.groups)
        return Review(verdicts, {}, factors, groups, of(self.labels), of(self.rollouts))

    def regrouped(self, groups: Sequence[Hashable] | None) -> Review:
        """Replace the groups with a trainer's own, [n], or with a single group if None, and drop
        the senders' labels."""
        own = None if groups is None else list(groups)
        return replace(self, groups=own, labels=None)


def unseen(batch: Sequence[Completion], error: Exception) -> Review:
    """Create the review of a batch on which a watching guard failed, for example on a full disk.

    A guard that decides would raise, because nobody should train unguarded without knowing. A guard
    that only watches protects nothing yet, so the run continues, and the log and
    ``guard/abstain_rate`` show the gap.
    """
    logger.error("the guard failed; it only watches, so the run goes on", exc_info=error)
    message = f"the guard failed: {type(error).__name__}"
    verdicts = [abstain("guard", Cause.FAULT, message) for _ in batch]
    return Review.of(batch, verdicts, metrics(verdicts))


def _segments(parts: Sequence[Review]) -> list[Hashable] | None:
    """Concatenate the rollouts; in a part without any, each completion is a rollout by itself."""
    if all(part.rollouts is None for part in parts):
        return None
    return [key for part in parts for key in part.rollouts or [None] * len(part.verdicts)]


def _all(columns: Sequence[list[Hashable] | None]) -> list[Hashable] | None:
    return None if None in columns else [key for column in columns for key in column or ()]
