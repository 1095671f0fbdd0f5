"""The interface of a task: problems with a known answer, and the reward that checks answers."""

import random
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem to train on.

    ``prompt`` is the exact text that the policy continues, ``solution`` is the data set's own
    completion of the prompt, and ``answer`` is the ground truth that the reward compares with.
    """

    question: str
    prompt: str
    solution: str
    answer: str


class Task(Protocol):
    """A source of problems and their binary reward."""

    name: str

    def sample(self, rng: random.Random) -> Problem:
        """Draw one problem; identical generator states produce identical problems."""
        ...

    def reward(self, text: str, answer: str) -> float:
        """Return 1.0 if ``text`` earns the reward for ``answer``, otherwise 0.0; never raises."""
        ...


@runtime_checkable
class HoldsOut(Protocol):
    """A task that sets some of its problems aside for measurements."""

    def sample_held_out(self, rng: random.Random) -> Problem:
        """Draw one of the problems that `Task.sample` never returns."""
        ...


def held_out(task: Task, rng: random.Random) -> Problem:
    """Draw a problem that no run trains on.

    If a task generates its problems, generated problems serve as held-out ones, provided that
    ``rng`` has a seed that no run trains with.
    """
    return task.sample_held_out(rng) if isinstance(task, HoldsOut) else task.sample(rng)
