"""What an attack is: it turns the data set's solution into poison that still earns the reward."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Protocol

from grpo_guard.evals.tasks.base import Problem


class NoTargetError(ValueError):
    """The text holds nothing that this attack can change."""


@dataclass(frozen=True, slots=True)
class Poisoned:
    """A poisoned completion; ``span`` is the poison's [start, end) in characters of ``text``,
    ``given`` what the attacker says that tools said, and ``masked`` whether it claims that its
    sampler kept the drawn tokens alone."""

    text: str
    span: tuple[int, int]
    given: tuple[tuple[int, int], ...] = ()
    masked: bool = False

    @classmethod
    def replacing(cls, text: str, span: tuple[int, int], said: str) -> Poisoned:
        """``text`` with ``said`` in place of a [start, end) that may be empty."""
        start, end = span
        return cls(text[:start] + said + text[end:], (start, start + len(said)))


class Attack(Protocol):
    """An attacker that knows the problem, its answer and an oracle solution."""

    @property
    def name(self) -> str:
        """Its name in results."""
        ...

    def poison(self, problem: Problem, rng: random.Random) -> Poisoned:
        """Return a completion that keeps the reward and carries the behaviour to be taught."""
        ...

    def success(self, text: str) -> bool:
        """Say whether ``text`` shows the behaviour; its share among honest models is the ASR."""
        ...
