"""`Ticket`: a batch in flight to workers, its answers so far, and which lost parts to retry."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from grpo_guard.core.verdict import Cause
from grpo_guard.guard.workers.balance import halves

MOST_TRIES: Final = 3
"""Maximum number of tries for an isolated completion, each on a different worker: if all of these
workers die, it is not down to one machine."""
MOST_LOST: Final = 16
"""Maximum number of workers that one author's completions in a batch may cost, or one per 16 of the
author's answered completions if that is more."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Cause and message for a completion that no worker could answer. If ``untried`` is set, the
    completion itself cannot be to blame."""

    cause: Cause
    message: str
    untried: bool = False


class Ticket:
    """One batch in flight: the objects to send to workers, each object's author if known, and
    additional arguments for every worker's ``read``."""

    gives_way = False
    """Whether other tickets' parts go first; nobody waits long for such a ticket."""

    def __init__(
        self, batch: Sequence[Any], authors: Sequence[Hashable], arguments: tuple[Any, ...] = ()
    ) -> None:
        self.batch, self.authors, self.arguments = tuple(batch), authors, arguments
        self._done = threading.Event()
        self._answers: list[Any] = [None] * len(self.batch)
        self._left = len(self.batch)
        self._answered: Counter[Hashable] = Counter()
        self._lost: Counter[Hashable] = Counter()
        if not self._left:
            self._done.set()

    def answer(self, place: int) -> Any:
        """Return the answer at an index, or `Lost`, after waiting for the whole batch."""
        # In steps: if another thread took the signal, the main thread would not wake up for Ctrl-C.
        while not self._done.wait(1.0):
            pass
        return self._answers[place]

    def put(self, places: Sequence[int], answers: Sequence[Any]) -> None:
        """Record the answers to a part that has no answers yet."""
        if self.over:  # nobody waits for it any more
            return
        for place, answer in zip(places, answers, strict=True):
            assert self._answers[place] is None
            self._answers[place] = answer
            self._answered[self.authors[place]] += not isinstance(answer, Lost)
        self._left -= len(places)
        if not self._left:
            self._done.set()

    def abandon(self) -> None:
        """Stop waiting; parts that have not been handed out yet are not read."""
        self._done.set()

    @property
    def over(self) -> bool:
        """Whether all objects have an answer, or nobody is waiting for the batch any more."""
        return self._done.is_set()

    def end(self, lost: Lost) -> None:
        """Give up on everything that has no answer yet."""
        self.put(rest := [i for i, a in enumerate(self._answers) if a is None], [lost] * len(rest))

    def smaller(self, part: Part) -> list[Part]:
        """Return the parts to retry instead of a lost part; none if it has to be abandoned."""
        if self.over:
            return []
        if len(authors := {self.authors[place] for place in part.places}) == 1:
            (author,) = authors
            self._lost[author] += 1
            if self._lost[author] > max(MOST_LOST, self._answered[author] // 16):
                return []
        if len(part.places) > 1:
            return [Part(self, half) for half in halves(part.places, self.authors)]
        return [Part(self, part.places, part.tries + 1)] if part.tries < MOST_TRIES else []


@dataclass(slots=True)
class Part:
    """Indices of some of a batch's objects, and the number of this try."""

    ticket: Ticket
    places: list[int]
    tries: int = 1
    avoid: int | None = None
