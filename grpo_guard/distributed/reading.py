"""What workers read in a batch's texts, handed to the rules that decide by it in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from grpo_guard.completion import Completion
from grpo_guard.distributed.worker import Reading, Rule
from grpo_guard.supervise import Runnable
from grpo_guard.verdict import Verdict

_Table = Mapping[int, Reading]


class Readings:
    """Stands between rules and their texts. Safe to share between threads.

    Args:
        rules: In the order of a `Reading`. What they read through is replaced.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        # A context goes along to the threads that verifiers run on, and is no other batch's.
        self._table: ContextVar[_Table | None] = ContextVar("readings", default=None)
        for i, rule in enumerate(rules):
            rule.reading = _Known(rule.reading, self._table, i)

    @contextmanager
    def known(self, batch: Sequence[Completion], found: Sequence[Reading]) -> Iterator[None]:
        """Within it the rules know what was found in these completions, and do not read them.

        Args:
            batch: The objects that the rules are going to be shown; any other is read here.
            found: One for each.
        """
        pairs = zip(batch, found, strict=True)
        token = self._table.set({id(completion): reading for completion, reading in pairs})
        try:
            yield
        finally:
            self._table.reset(token)


class _Known:
    """A rule's reading, as far as it was done elsewhere."""

    def __init__(self, reading: Runnable, table: ContextVar[_Table | None], place: int) -> None:
        self._reading, self._table, self._place = reading, table, place

    @property
    def name(self) -> str:
        return self._reading.name

    @property
    def timeout(self) -> float | None:
        return self._reading.timeout

    @property
    def judges_alone(self) -> bool:
        return self._reading.judges_alone

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        table = self._table.get() or {}
        if any(id(completion) not in table for completion in batch):
            return self._reading.verify(batch)
        return [table[id(completion)][self._place] for completion in batch]
