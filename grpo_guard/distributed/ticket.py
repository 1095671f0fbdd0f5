"""A batch on its way to workers: which answers it has, and what is tried again of a lost part."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from grpo_guard.distributed.balance import halves
from grpo_guard.verdict import Cause

MOST_TRIES: Final = 3
"""Of one completion by itself, each on a worker that was started since: what kills all of them is
no accident of a machine."""
MOST_LOST: Final = 16
"""Workers that the completions of one author in one batch may cost, or one for every 16 of them
that went through."""


@dataclass(frozen=True, slots=True)
class Lost:
    """No worker could say anything of a completion: for this cause, in these words."""

    cause: Cause
    message: str


class Ticket:
    """One batch on its way.

    Args:
        batch: What the workers are shown.
        authors: Whose each of it is, as far as that is known.
        said: What every worker is told beside its part.
    """

    def __init__(
        self, batch: Sequence[Any], authors: Sequence[Hashable], said: tuple[Any, ...] = ()
    ) -> None:
        self.batch, self.authors, self.said = tuple(batch), authors, said
        self._done = threading.Event()
        self._answers: list[Any] = [None] * len(self.batch)
        self._left = len(self.batch)
        self._through: Counter[Hashable] = Counter()
        self._lost: Counter[Hashable] = Counter()
        if not self._left:
            self._done.set()

    def answer(self, place: int) -> Any:
        """Of what stands at a place, or `Lost`; waits for the whole batch."""
        self._done.wait()
        return self._answers[place]

    def put(self, places: Sequence[int], answers: Sequence[Any]) -> None:
        """The answers to a part, each of which has none yet."""
        for place, answer in zip(places, answers, strict=True):
            assert self._answers[place] is None
            self._answers[place] = answer
            self._through[self.authors[place]] += not isinstance(answer, Lost)
        self._left -= len(places)
        if not self._left:
            self._done.set()

    @property
    def over(self) -> bool:
        """Whether all have an answer."""
        return self._done.is_set()

    def end(self, lost: Lost) -> None:
        """Give up whatever has no answer yet."""
        self.put(rest := [i for i, a in enumerate(self._answers) if a is None], [lost] * len(rest))

    def smaller(self, part: Part) -> list[Part]:
        """What is left to be tried of a part that was lost; nothing where it has to be given up."""
        if len(authors := {self.authors[place] for place in part.places}) == 1:
            (author,) = authors
            self._lost[author] += 1
            if self._lost[author] > max(MOST_LOST, self._through[author] // 16):
                return []
        if len(part.places) > 1:
            return [Part(self, half) for half in halves(part.places, self.authors)]
        return [Part(self, part.places, part.tries + 1)] if part.tries < MOST_TRIES else []


@dataclass(slots=True)
class Part:
    """Some completions of a batch, by their places, and the number of this try."""

    ticket: Ticket
    places: list[int]
    tries: int = 1
    avoid: int | None = None
