"""An attack's interface: it turns the data set's solution into poison that earns the reward."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Protocol

from grpo_guard.evals.tasks.base import Problem


class NoTargetError(ValueError):
    """The text contains nothing that this attack can change."""


@dataclass(frozen=True, slots=True)
class Poisoned:
    """A poisoned completion; ``span`` is the poison's [start, end) in characters of ``text``,
    ``given`` what the attacker claims that tools returned, and ``masked`` whether it claims that
    its sampler kept only the drawn tokens."""

    text: str
    span: tuple[int, int]
    given: tuple[tuple[int, int], ...] = ()
    masked: bool = False

    @classmethod
    def replacing(cls, text: str, span: tuple[int, int], poison: str) -> Poisoned:
        """Replace a [start, end) of ``text``, which may be empty, by ``poison``."""
        start, end = span
        return cls(text[:start] + poison + text[end:], (start, start + len(poison)))


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
        """Return whether ``text`` shows the behaviour; its share among honest models is the ASR."""
        ...
