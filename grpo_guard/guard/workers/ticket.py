"""`Ticket`: a batch in flight to workers, in parts of equal work, and which lost parts to retry."""

import heapq
import math
import threading
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Cause

MOST_TRIES: Final = 3
"""Maximum number of tries for an isolated completion, each on a different worker: if all of these
workers die, it is not down to one machine."""
MOST_LOST: Final = 16
"""Maximum number of workers that one author's completions in a batch may cost, or one per 16 of the
author's answered completions if that is more."""

MOST_TOKENS: Final = 250_000
"""Maximum number of tokens per part. A dead worker loses at most one part, and reading a part takes
at worst a tenth of a rule's time-out."""
MOST_COMPLETIONS: Final = 1_024
CHARACTERS_A_TOKEN: Final = 4


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

    def smaller(self, part: "Part") -> list["Part"]:
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


def weight(completion: Completion) -> int:
    """Number of tokens in a completion and its prompt, or characters / `CHARACTERS_A_TOKEN` if that
    is more: ids come from the sender, and a single id for a megabyte of text would mislead."""
    ids = len(completion.completion_ids or ()) + len(completion.prompt_ids or ())
    characters = len(completion.text) + len(completion.prompt_text)
    return 1 + max(ids, characters // CHARACTERS_A_TOKEN)


def balanced(weights: Sequence[int], workers: int) -> list[list[int]]:
    """Split a batch's indices into parts of roughly equal weight: the heaviest completions are
    assigned first, each to the lightest part so far (Graham's LPT, at most 4/3 of the optimum).

    There are as many parts as workers, or a multiple of that if the parts would otherwise be too
    large. Indices ascend within a part, and no part is empty. Each weight must be at least 1.
    """
    if not weights:
        return []
    shares = (sum(weights) / MOST_TOKENS, len(weights) / MOST_COMPLETIONS)
    count = min(len(weights), workers * max(1, math.ceil(max(shares) / workers)))
    parts: list[list[int]] = [[] for _ in range(count)]
    lightest = [(0, i) for i in range(count)]
    for place in sorted(range(len(weights)), key=lambda i: -weights[i]):
        total, i = lightest[0]
        parts[i].append(place)
        heapq.heapreplace(lightest, (total + weights[place], i))
    return [sorted(part) for part in parts]


def halves(places: Sequence[int], authors: Sequence[Hashable]) -> list[list[int]]:
    """Split a part of at least two completions in two, between authors if there are several.

    This quickly separates one author's completions from all others, so that whatever kills workers
    is traced first to its author and then to a single completion. ``authors`` lists the author of
    each completion in the whole batch.
    """
    names = list(dict.fromkeys(authors[place] for place in places))
    if len(names) == 1:
        middle = len(places) // 2
        return [list(places[:middle]), list(places[middle:])]
    first = set(names[: len(names) // 2])
    split = [place for place in places if authors[place] in first]
    return [split, [place for place in places if authors[place] not in first]]
