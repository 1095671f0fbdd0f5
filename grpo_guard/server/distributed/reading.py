"""Hand the results of workers to the rules in this process that decide by them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from grpo_guard.core.completion import Completion
from grpo_guard.core.scope import Runnable, Scope
from grpo_guard.core.verdict import Verdict
from grpo_guard.server.distributed.worker import Reading, Rule

_Table = Mapping[int, Reading]


class Readings:
    """Makes rules use results of workers instead of reading texts. Safe between threads.

    Args:
        rules: In the order of a `Reading`. Their ``reading`` is replaced.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        # A context variable reaches the verifiers' threads, and is never another batch's.
        self._table: ContextVar[_Table | None] = ContextVar("readings", default=None)
        for i, rule in enumerate(rules):
            rule.reading = _WorkerReading(rule.reading, self._table, i)

    @contextmanager
    def known(self, batch: Sequence[Completion], found: Sequence[Reading]) -> Iterator[None]:
        """Within this context the rules know the results for these completions, one each; any other
        object is read in this process."""
        pairs = zip(batch, found, strict=True)
        token = self._table.set({id(completion): reading for completion, reading in pairs})
        try:
            yield
        finally:
            self._table.reset(token)


class _WorkerReading(Runnable):
    """A rule's reading that uses a worker's result if there is one."""

    is_elsewhere = True

    def __init__(self, reading: Runnable, table: ContextVar[_Table | None], place: int) -> None:
        self._reading, self._table, self._place = reading, table, place

    @property
    def name(self) -> str:
        return self._reading.name

    @property
    def timeout(self) -> float | None:
        return self._reading.timeout

    @property
    def scope(self) -> Scope:
        return self._reading.scope

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        table = self._table.get() or {}
        if any(id(completion) not in table for completion in batch):
            return self._reading.verify(batch)
        return [table[id(completion)][self._place] for completion in batch]
