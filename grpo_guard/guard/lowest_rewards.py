"""The lowest recent reward, awarded to any completion not judged in time."""

from collections import deque
from collections.abc import Iterable
from typing import Final

from grpo_guard.guard.graders import LARGEST_REWARD

REMEMBERED: Final = 1024
"""Number of most recent rewards to consider."""


class LowestRewards:
    """The lowest of the most recent rewards, at most 0.

    If wrong answers get -1, a reward of 0 would pay an attacker for text that takes too long to
    verify. Only recent rewards count, and none whose magnitude exceeds `LARGEST_REWARD`: an
    unbounded grader could give one attacker -1e300, which honest work would otherwise earn forever.
    """

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=REMEMBERED)

    def add(self, rewards: Iterable[float]) -> None:
        """Remember rewards, in the order in which they were earned."""
        numbers = map(float, rewards)  # a tensor of booleans has no absolute value
        self._latest.extend(number for number in numbers if abs(number) <= LARGEST_REWARD)

    @property
    def least(self) -> float:
        """The lowest of the remembered rewards, at most 0."""
        return min(0.0, min(tuple(self._latest), default=0.0))
