"""`Call`: one call of a guard whose texts are read in other processes or were read beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from grpo_guard.core.completion import Completion
from grpo_guard.core.forks import Lock
from grpo_guard.core.supervise import (
    ENGINE_WIDE,
    MAX_ISOLATED_FAILURES,
    Runnable,
    running,
    supervised,
)
from grpo_guard.core.verdict import Verdict
from grpo_guard.core.verifier import CompletionVerifier

if TYPE_CHECKING:
    from grpo_guard.guard.workers.early import EarlyReadings
    from grpo_guard.guard.workers.plan import Group, Plan, Reading


class Readers(Protocol):
    """The part of `Workers`, which imports this module, that a call needs."""

    @property
    def count(self) -> int:
        """Number of worker processes."""

    def renewed_plan(self, verifier: CompletionVerifier) -> Plan:
        """The parts of a verifier that read each text on its own, in its current state."""

    def worth(self, batch: Sequence[Completion]) -> bool:
        """Whether a batch should be read in worker processes."""

    def read(self, group: Group, batch: Sequence[Completion]) -> list[Reading] | None:
        """Return a reading for each completion, or None if this process has to read them."""


class Call:
    """The sources of readings during one guard call (a `supervise.Elsewhere`): worker processes, if
    they may be used, and early readings made before the call."""

    def __init__(
        self,
        workers: Readers,
        verifier: CompletionVerifier,
        processes: bool,
        early: EarlyReadings | None,
    ) -> None:
        self._workers, self._verifier = workers, verifier
        self._processes, self._early = processes, early
        self._lock = Lock()
        self._places: dict[int, tuple[Group, int]] | None = None
        self._whole: Group | None = None  # the group that is shown whole batches
        self._tables: dict[int, dict[int, tuple[Completion, Reading]]] = {}
        self._asked: dict[int, Completion] = {}
        self._found_early = 0
        self.workers = 0
        """Number of processes that have read anything."""

    @property
    def early_rate(self) -> float:
        """The share of completions that had already been read before the call."""
        return self._found_early / max(1, len(self._asked))

    def verdicts(self, verifier: Runnable, batch: Sequence[Completion]) -> list[Verdict] | None:
        """See `supervise.Elsewhere`. A group's first verifier has the texts read for the group."""
        if self._places is None:
            if self._early is None and not self._workers.worth(batch):
                return None
            plan = self._workers.renewed_plan(self._verifier)
            self._places, self._whole = plan.places, plan.groups[0] if plan.whole else None
        if id(verifier) not in self._places:
            return None
        group, column = self._places[id(verifier)]
        with self._lock:
            table = self._tables.setdefault(id(group), {})
            if group is self._whole:
                self._take_early(group, table, batch)
            missing = list({id(c): c for c in batch if id(c) not in table}.values())
            found = self._workers.read(group, missing) if missing and self._processes else None
            if found is not None:
                self.workers = self._workers.count
                table.update((id(c), (c, one)) for c, one in zip(missing, found, strict=True))
        if missing and found is None:
            return _with_the_rest(verifier, batch, table, column)
        return [table[id(completion)][1][column] for completion in batch]

    def _take_early(
        self,
        group: Group,
        table: dict[int, tuple[Completion, Reading]],
        batch: Sequence[Completion],
    ) -> None:
        """Add early readings to a group's table, for completions that are new to this call."""
        if self._early is None:
            return
        new = [c for c in batch if id(c) not in self._asked]
        if new:
            self._asked.update((id(c), c) for c in new)
            found = self._early.take(group, new)
            table.update((id(new[i]), (new[i], one)) for i, one in found.items())
            self._found_early += len(found)


def _with_the_rest(
    verifier: Runnable,
    batch: Sequence[Completion],
    table: dict[int, tuple[Completion, Reading]],
    column: int,
) -> list[Verdict] | None:
    """Combine the verdicts in a table with those found in this process on the other completions.

    Returns None if this process has to read the whole batch, because how many failures make an
    outage depends on how many texts do not fail.
    """
    left = [c for c in batch if id(c) not in table]
    if len(left) == len(batch):
        return None
    from grpo_guard.guard.workers.early import is_failure

    with running(None):
        read = supervised(verifier, left)
    if sum(v.cause not in ENGINE_WIDE and is_failure(v) for v in read) > MAX_ISOLATED_FAILURES:
        return None
    rest = iter(read)
    return [table[id(c)][1][column] if id(c) in table else next(rest) for c in batch]
