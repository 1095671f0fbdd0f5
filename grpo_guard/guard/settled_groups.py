"""The settled rewards of a batch, in the two forms that let trainers leave a completion out.

Some trainers accept None. Others need a number: the mean reward of the completions that stay in its
group gives a left-out completion an advantage of 0, and does not change the mean.
"""

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from grpo_guard.guard.guard import Guard, Review
from grpo_guard.guard.settlement import mean_of_kept


@dataclass(frozen=True, slots=True)
class SettledGroups:
    """Settled rewards, [n], with None for completions that are left out, and their groups, [n].

    ``means`` maps each group to the mean reward of the completions that stay in it, which replaces
    the rewards that are left out. Groups in which no completion stays are missing.
    """

    kept: list[float | None]
    groups: list[Hashable]
    means: Mapping[Hashable, float]

    @classmethod
    def of(
        cls,
        rewards: Sequence[float | None],
        groups: Sequence[Hashable] | None = None,
        out: Sequence[bool] | None = None,
    ) -> "SettledGroups":
        """Group settled rewards, [n], as returned by `Guard.settle`, and compute group means.
        Completions marked in ``out``, [n], are left out too, whatever they earn. Raises ValueError
        if the lengths differ."""
        n = len(rewards)
        groups = [None] * n if groups is None else list(groups)
        out = [False] * n if out is None else out
        kept = [None if left else reward for reward, left in zip(rewards, out, strict=True)]
        finite = defaultdict[Hashable, list[float]](list)
        for group, reward in zip(groups, kept, strict=True):
            if reward is not None and math.isfinite(reward):
                finite[group].append(reward)
        means = {group: mean_of_kept(values) for group, values in finite.items()}
        return cls(kept, groups, means)

    @property
    def left_out(self) -> list[bool]:
        """Whether each completion is left out, [n]."""
        return [reward is None for reward in self.kept]

    @property
    def filled(self) -> list[float]:
        """Rewards, [n], with the group's mean for completions left out, or 0 if none stays."""
        return [
            self.mean(group) if reward is None else reward
            for reward, group in zip(self.kept, self.groups, strict=True)
        ]

    def mean(self, group: Hashable = None) -> float:
        """The mean reward of the completions that stay in a group; 0 if there are none."""
        return self.means.get(group, 0.0)


def settle_groups(
    guard: Guard,
    rewards: Sequence[float | None],
    review: Review,
    *,
    out: Sequence[bool] | None = None,
) -> SettledGroups:
    """Settle rewards for a trainer's adapter; see `Guard.settle`, which can raise, and
    `SettledGroups.of`."""
    return SettledGroups.of(guard.settle(rewards, review), review.groups, out)
