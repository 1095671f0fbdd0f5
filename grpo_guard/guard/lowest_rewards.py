"""The lowest rewards of late: what a completion earns that was not judged in time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from grpo_guard.guard.graders import LARGEST_REWARD

REMEMBERED: Final = 1024
"""How many of the latest rewards count."""


class LowestRewards:
    """The least of the latest rewards, at most 0.

    If wrong answers get -1, a 0 would pay an attacker for texts that take too long to verify. Only
    the latest count, and none beyond `LARGEST_REWARD`: a grader without bounds may answer one
    attacker with -1e300, which honest work would otherwise earn for ever.
    """

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=REMEMBERED)

    def add(self, rewards: Iterable[float]) -> None:
        """Remember rewards, in the order in which they were earned."""
        numbers = map(float, rewards)  # a tensor of booleans has no absolute value
        self._latest.extend(number for number in numbers if abs(number) <= LARGEST_REWARD)

    @property
    def least(self) -> float:
        """The least of those that are remembered, and 0 at most."""
        return min(0.0, min(tuple(self._latest), default=0.0))
