"""A task's interface: problems with a known answer, and the reward that checks them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


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


@runtime_checkable
class HoldsOut(Protocol):
    """A task that keeps some of its problems for measurements."""

    def sample_held_out(self, rng: random.Random) -> Problem:
        """Draw one of the problems that `Task.sample` never gives."""
        ...


def held_out(task: Task, rng: random.Random) -> Problem:
    """Draw a problem that no run trains on.

    If a task generates its problems, a seed of one's own gives problems as good as held out.
    """
    return task.sample_held_out(rng) if isinstance(task, HoldsOut) else task.sample(rng)
