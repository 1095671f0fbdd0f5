"""What a task is: problems with a known answer, and the reward that checks them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Problem:
    """One training example.

    ``prompt`` is the exact text that the policy continues, ``solution`` the data set's own
    completion of it, ``answer`` the ground truth that the reward compares with.
    """

    question: str
    prompt: str
    solution: str
    answer: str


class Task(Protocol):
    """A source of problems and their binary reward."""

    name: str

    def sample(self, rng: random.Random) -> Problem:
        """Draw one problem; equal generator states give equal problems."""
        ...

    def reward(self, text: str, answer: str) -> float:
        """Return 1.0 if ``text`` earns the reward for ``answer``, else 0.0; never raises."""
        ...
