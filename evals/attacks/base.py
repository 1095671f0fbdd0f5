"""The interface of an attack: it turns the data set's solution into poison that earns a reward."""

import random
from dataclasses import dataclass
from typing import Protocol

from grpo_guard.evals.tasks.base import Problem


class NoTargetError(ValueError):
    """Raised if a text contains nothing that the attack can change."""


@dataclass(frozen=True, slots=True)
class Poisoned:
    """A poisoned completion. ``span`` is the poison's [start, end) in characters of ``text``,
    ``given`` holds the spans that the attacker claims were returned by tools, and ``masked`` says
    whether the attacker claims a sampling mask that kept only the sampled tokens."""

    text: str
    span: tuple[int, int]
    given: tuple[tuple[int, int], ...] = ()
    masked: bool = False

    @classmethod
    def replacing(cls, text: str, span: tuple[int, int], poison: str) -> "Poisoned":
        """Replace ``text[start:end]``, which can be empty, with ``poison``."""
        start, end = span
        return cls(text[:start] + poison + text[end:], (start, start + len(poison)))


class Attack(Protocol):
    """An attacker that knows the problem, its answer and an oracle solution."""

    @property
    def name(self) -> str:
        """The attack's name in results."""
        ...

    def poison(self, problem: Problem, rng: random.Random) -> Poisoned:
        """Return a completion that keeps the reward and carries the behaviour to be taught."""
        ...

    def success(self, text: str) -> bool:
        """Return whether ``text`` shows the behaviour; ASR is the share of honest texts that do."""
        ...
