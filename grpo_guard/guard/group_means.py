"""Compute the mean rewards of a group's rollouts, and find the completions below the mean.

Means are taken over *units*: a unit is a rollout with all of its segments, or a completion that is
a rollout by itself. If each segment counted separately, a rollout split in two would have twice the
weight in the mean that all other rollouts are compared with.
"""

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeGuard

_Place: TypeAlias = tuple[Hashable, Hashable, Hashable]  # group, label, unit


def units_of(rollouts: Sequence[Hashable] | None, n: int) -> list[Hashable]:
    """The unit of each of n completions: its rollout, or the completion itself if it has none."""
    if rollouts is None:
        return list(range(n))
    return [i if key is None else (key,) for i, key in enumerate(rollouts)]


def means_of_units(
    values: Sequence[float | None], units: Sequence[Hashable]
) -> dict[Hashable, float]:
    """Map each unit to the mean of its segments' values. None and non-finite values are ignored;
    units with no other values are omitted."""
    means: dict[Hashable, RunningMean] = {}
    for value, unit in zip(values, units, strict=True):
        if _finite(value):
            means.setdefault(unit, RunningMean()).add(value)
    return {unit: mean.value for unit, mean in means.items()}


@dataclass(slots=True)
class RunningMean:
    """A running mean that is exact for equal values and never exceeds the largest value."""

    value: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.count += 1
        self.value += value / self.count - self.value / self.count


def losing(
    earned: Sequence[float | None],
    given: Sequence[float | None],
    may_lose: Sequence[bool],
    groups: Sequence[Hashable],
    labels: Sequence[Hashable] | None,
    units: Sequence[Hashable],
) -> list[int]:
    """Indices of rejected completions that stay in their group under "no_gain", because they lose.

    Rejected completions are considered in ascending order of reward. Each stays if its reward is at
    most the mean of its group so far. Its reward is then also at most the group's final mean, so no
    number of bad rejected completions can lower the mean enough for a better one to gain. If
    nothing else stays in a group, no rejected completion does.

    A label is only the sender's claim: poison sent with its own clean copy under a special label
    would be compared with that copy alone. So a reward must be at most the mean of the group and
    also the mean of the completions with the same label. A label that no other unit of the group
    has changes nothing.

    Segments, too, can be a mere claim, so a rollout stays in full or not at all. An accepted
    rollout counts with its lowest reward; otherwise high-earning segments would raise the mean that
    poison is compared with. A rejected rollout whose rewards differ does not stay; otherwise
    segments that earn nothing would hide a segment that gains.
    """
    labels = [None] * len(earned) if labels is None else labels
    places = list(zip(groups, labels, units, strict=True))
    sizes = Counter((group, label) for group, label, _ in set(places))
    means: dict[tuple[Hashable, ...], RunningMean] = {}

    def compared(group: Hashable, label: Hashable) -> list[RunningMean]:
        keys: list[tuple[Hashable, ...]] = [(group,)]
        if sizes[group, label] > 1:
            keys.append((group, label))
        return [means.setdefault(key, RunningMean()) for key in keys]

    kept = [None if loses else value for value, loses in zip(earned, may_lose, strict=True)]
    for (group, label, _), (lowest, _) in _by_place(kept, places).items():
        for mean in compared(group, label):
            mean.add(lowest)
    rejected = [value if loses else None for value, loses in zip(given, may_lose, strict=True)]
    out = set[Hashable]()
    ascending = sorted(_by_place(rejected, places).items(), key=lambda one: one[1])
    for (group, label, unit), (lowest, highest) in ascending:
        means_of = compared(group, label)
        if lowest == highest and all(mean.count and highest <= mean.value for mean in means_of):
            for mean in means_of:
                mean.add(highest)
        else:
            out.add(unit)
    return [i for i, v in enumerate(rejected) if _finite(v) and units[i] not in out]


def _by_place(
    values: Sequence[float | None], places: Sequence[_Place]
) -> dict[_Place, tuple[float, float]]:
    """Map each place to the lowest and the highest finite value of its completions."""
    found: dict[_Place, tuple[float, float]] = {}
    for value, place in zip(values, places, strict=True):
        if _finite(value):
            lowest, highest = found.get(place, (value, value))
            found[place] = min(lowest, value), max(highest, value)
    return found


def _finite(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)
