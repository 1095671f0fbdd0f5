"""Means over a group's rollouts: what counts in them, and what falls below them.

Means count *units*: a rollout with all of its segments, or a completion that is a rollout by
itself. If each segment counted, a rollout split in two would weigh twice in the mean that all
others are compared with.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeGuard

_Place: TypeAlias = tuple[Hashable, Hashable, Hashable]  # group, label, unit


def units_of(rollouts: Sequence[Hashable] | None, n: int) -> list[Hashable]:
    """Each of n completions' unit: its rollout, or the completion itself if it has none."""
    if rollouts is None:
        return list(range(n))
    return [i if key is None else (key,) for i, key in enumerate(rollouts)]


def means_of_units(
    values: Sequence[float | None], units: Sequence[Hashable]
) -> dict[Hashable, float]:
    """The mean of the values of each unit's segments, without None and non-finite ones; units that
    have no other are missing."""
    means: dict[Hashable, RunningMean] = {}
    for value, unit in zip(values, units, strict=True):
        if _finite(value):
            means.setdefault(unit, RunningMean()).add(value)
    return {unit: mean.value for unit, mean in means.items()}


@dataclass(slots=True)
class RunningMean:
    """A running mean: exact for equal values, and never beyond the largest one."""

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

    In ascending order of reward, each stays whose reward is at most the mean of its group so far.
    It is then also at most the group's final mean, so that no number of bad rejected completions
    can lift a better one above the mean. If nothing else stays in a group, none of them does.

    A label is the sender's claim: poison next to its own clean copy under a label of its own would
    be compared with that alone. So the reward must be at most both means, that of the group and
    that of those that share its label. A label that no other unit of the group has changes nothing.

    Segments may be a claim, too, so a rollout stays as a whole or not at all. An accepted one
    counts with its lowest reward, or segments that earn much would lift the mean that poison is
    compared with; a rejected one whose rewards differ does not stay, or segments that earn nothing
    would hide one that gains.
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
    """The lowest and the highest of each unit's finite values in each of its places."""
    found: dict[_Place, tuple[float, float]] = {}
    for value, place in zip(values, places, strict=True):
        if _finite(value):
            lowest, highest = found.get(place, (value, value))
            found[place] = min(lowest, value), max(highest, value)
    return found


def _finite(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)
