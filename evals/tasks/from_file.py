"""A task whose problems are read from a file; a tenth of the problems are held out."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from grpo_guard.evals.tasks.base import Problem

HELD_OUT_EVERY: Final = 10


class FromFile:
    """Draws from a list of problems; every tenth problem (or else the last) is held out.

    Args:
        name: The task's name.
        problems: At least two problems, in the order of the file.
        reward: Computes a text's reward given the answer, as `Task.reward` does.

    Raises:
        ValueError: there are fewer than two problems.
    """

    def __init__(
        self, name: str, problems: Sequence[Problem], reward: Callable[[str, str], float]
    ) -> None:
        if len(problems) < 2:
            raise ValueError(
                f"{name}: expected at least 2 problems, one to train on and one held out, "
                f"got {len(problems)}"
            )
        self.name = name
        self._held_out = problems[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY] or problems[-1:]
        kept = [p for n, p in enumerate(problems, 1) if n % HELD_OUT_EVERY]
        self._problems = kept if len(problems) >= HELD_OUT_EVERY else problems[:-1]
        self._reward = reward

    def sample(self, rng: random.Random) -> Problem:
        """Draw one problem to train on; identical generator states produce identical problems."""
        return rng.choice(self._problems)

    def sample_held_out(self, rng: random.Random) -> Problem:
        """Draw one of the problems that `sample` never returns."""
        return rng.choice(self._held_out)

    def reward(self, text: str, answer: str) -> float:
        """Compute the task's own reward."""
        return self._reward(text, answer)
