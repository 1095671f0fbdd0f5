"""`Workers`: the processes in which a guard's rules read texts."""

from __future__ import annotations

import logging
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from grpo_guard.core.completion import Completion
from grpo_guard.core.forks import Lock
from grpo_guard.core.supervise import running
from grpo_guard.core.verdict import abstain
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.guard.workers.ticket import Lost, Ticket, balanced, weight

if TYPE_CHECKING:
    from grpo_guard.guard.workers.early import EarlyReadings
    from grpo_guard.guard.workers.plan import Group, Plan, Reading
    from grpo_guard.guard.workers.pool import Pool

logger = logging.getLogger("grpo_guard")

WORTH_CHARACTERS: Final = 1_000_000
"""Minimum number of characters in a batch's texts for processes to be started unasked."""
MOST_UNASKED: Final = 16
MOST_WORKERS: Final = 1_024
# Number of parts per worker, so that a worker with slow texts leaves work for the others, and the
# minimum size of a part in tokens, so that sending does not dominate.
_PARTS: Final = 4
_LEAST_TOKENS: Final = 4_000


class Workers:
    """The processes that read texts for a guard. They are started when first needed, shared with
    the other guards in this process, and end with the last guard or with this process.

    Only code that reads each text on its own runs there: content rules, the reading step of
    `recurrence`, and verifiers with `CompletionVerifier.in_workers`. Everything else runs in this
    process, so verdicts are the same.

    Args:
        number: Number of processes; 0 for none. If None, half of this process's cores, at most
            `MOST_UNASKED`, for batches of at least `WORTH_CHARACTERS`, but no processes if that
            would be just one, or if this process is itself one of several sharing the machine: a
            child of `multiprocessing`, or a worker of Ray or of `GraderFailures`.

    Raises:
        ValueError: ``number`` is negative or too large.
        TypeError: ``number`` is neither an integer nor None.
    """

    name = "workers"
    steps_aside = False

    def __init__(self, number: int | None = None) -> None:
        if number is not None and type(number) is not int:
            raise TypeError(f"workers: expected an integer or None, got {number!r:.80}")
        if number is not None and not 0 <= number <= MOST_WORKERS:
            raise ValueError(f"workers: expected 0 to {MOST_WORKERS}, got {number!r:.80}")
        self.number = number
        self._forget()

    def _forget(self) -> None:
        self._owner = os.getpid()
        self._lock = Lock()
        self._plan: Plan | None = None
        self._pool: Pool | None = None
        self._leave: Callable[[], Any] | None = None
        self._ahead: dict[int, tuple[Completion, Ticket, int]] = {}
        self._reading = 0
        self.early: EarlyReadings | None = None
        """Readings made ahead of their batch; None if there are none so far."""
        self._early_rate = 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        return Workers, (self.number,)  # processes stay where they are

    @property
    def count(self) -> int:
        """Number of processes that would be used."""
        if self.number is not None:
            return self.number
        from grpo_guard.guard.grader_pool import cores

        half = 0 if _is_child() else min(MOST_UNASKED, cores() // 2)
        return half if half > 1 else 0

    @property
    def author_can_abstain(self) -> str | None:
        """How a text's author can cause an abstention; see `CompletionVerifier`."""
        if not self.number:
            return None  # unasked processes are not started under a policy that pays abstentions
        return (
            "a text on which every worker process dies or hangs makes it abstain; choose workers=0"
        )

    @contextmanager
    def reading(self, verifier: CompletionVerifier, *, unasked: bool = True) -> Iterator[None]:
        """Context for running ``verifier`` in which `supervised` has texts read in processes; with
        ``unasked=False``, only if a number of processes was given."""
        self._forget_a_forks()
        early, processes = self.early, self._may_start(unasked)
        if early is None and not processes:
            yield
            return
        from grpo_guard.guard.workers.call import Call

        texts = Call(self, verifier, processes, early)
        with running(texts), nullcontext() if early is None else early.batch():
            yield
        self._reading, self._early_rate = texts.workers, texts.early_rate

    def read_early(
        self, verifier: CompletionVerifier, batch: Sequence[Completion], *, unasked: bool = True
    ) -> None:
        """Start reading, in the background, completions as ``verifier`` will see them when their
        batch arrives; never raises. For ``unasked`` see `reading`.

        Only code that reads each text on its own runs early, in processes if there are any. The
        batch then reads only the remaining texts, and its verdicts are the same. Anything that
        compares completions, asks a model or keeps per-node state runs on the batch.
        """
        self._forget_a_forks()
        try:
            plan = self.plan(verifier)
            if not plan.whole or not batch:
                return
            if self.early is None:
                from grpo_guard.guard.workers.early import EarlyReadings

                self.early = EarlyReadings()
            # Unasked processes are not started for just a few texts.
            pool = self._joined() if self.number else self._pool
            self.early.add(plan.groups[0], batch, pool if self._may_start(unasked) else None)
        except Exception as error:
            logger.warning("texts are read with their batch, not early: %r", error)

    def _may_start(self, unasked: bool) -> bool:
        return bool(self.number) or (self.number is None and unasked)

    def _forget_a_forks(self) -> None:
        if self._owner != os.getpid():  # a fork, which the parent's processes do not answer
            self._forget()

    def begin(self, verifier: CompletionVerifier, batch: Sequence[Completion]) -> None:
        """Send a batch to the workers before ``verifier`` runs on it; call `forget` afterwards."""
        plan = self.plan(verifier)
        pool = self._joined() if plan.whole and batch and self.worth(batch) else None
        if pool is not None:
            # Other workers read the batches before and after this one.
            ticket = _sent(pool, plan.groups[0], batch, 1)
            with self._lock:
                self._ahead.update((id(c), (c, ticket, i)) for i, c in enumerate(batch))

    def forget(self, batch: Sequence[Completion]) -> None:
        """Drop a batch that was passed to `begin`."""
        with self._lock:
            for completion in batch:
                self._ahead.pop(id(completion), None)

    def close(self) -> None:
        """Release the processes, which end if no other guard is using them, and discard all early
        readings."""
        self._forget_a_forks()
        with self._lock:
            leave, self._leave, self._pool = self._leave, None, None
        if self.early is not None:
            self.early.clear()
        if leave is not None:
            leave()

    def figures(self) -> dict[str, float]:
        """Figures to log. If there are processes, ``guard/workers`` is the number that read texts
        in the last batch, and ``guard/workers_lost`` the number that have died or hung so far. Once
        `read_early` has been called, ``guard/read_early_rate`` is the share of the last batch read
        before it arrived."""
        found = {}
        if self.number or self._pool is not None:
            lost = 0 if self._pool is None else self._pool.replaced
            found = {"guard/workers": float(self._reading), "guard/workers_lost": float(lost)}
        if self.early is not None:
            found["guard/read_early_rate"] = self._early_rate
        return found

    def require_none_lost(self) -> None:
        """Raise ValueError if a process was lost, because a text's author could have caused it.
        Called before a policy pays abstentions."""
        if self._pool is not None and self._pool.replaced:
            raise ValueError(
                "Policy.on_abstain: 'pass' would pay for texts that cost a worker process; choose "
                "workers=0 for this guard, or on_abstain='skip' or 'zero'"
            )

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers."""
        return [] if self._pool is None else [one.pid for one in self._pool.up]

    def plan(self, verifier: CompletionVerifier) -> Plan:
        """The plan for what a verifier reads in processes."""
        from grpo_guard.guard.workers.plan import Plan

        if self._plan is None or self._plan.verifier is not verifier:
            self._plan = Plan.of(verifier)
        return self._plan

    def renewed_plan(self, verifier: CompletionVerifier) -> Plan:
        """The plan for a call, updated for any rules that changed since the last call."""
        self._plan = self.plan(verifier).renewed()
        return self._plan

    def worth(self, batch: Sequence[Completion]) -> bool:
        """Whether a batch should be read in worker processes."""
        if self.number is not None:
            return self.number > 0
        return sum(len(c.text) for c in batch) >= WORTH_CHARACTERS and self.count > 0

    def _joined(self) -> Pool | None:
        """The pool; None if its processes cannot be started."""
        from grpo_guard.guard.workers.processes import shared

        self._forget_a_forks()
        with self._lock:
            if self._pool is None:
                self._pool = shared.join(self.count)
                owner = os.getpid()
                self._leave = weakref.finalize(self, shared.leave, self.count, owner)
            return None if self._pool.closed else self._pool

    def read(self, group: Group, batch: Sequence[Completion]) -> list[Reading] | None:
        """Return a reading for each completion, or None if this process has to read them."""
        pool = self._joined() if self.worth(batch) else None
        if pool is None:
            return None
        with self._lock:
            ahead = [self._ahead.get(id(completion)) for completion in batch]
        at = {
            i: (ticket, place) for i, one in enumerate(ahead) if one for _, ticket, place in [one]
        }
        new = [i for i in range(len(batch)) if i not in at]
        if new:
            ticket = _sent(pool, group, [batch[i] for i in new], pool.workers)
            at |= {i: (ticket, n) for n, i in enumerate(new)}
        try:
            answers = [at[i][0].answer(at[i][1]) for i in range(len(batch))]
        except BaseException:  # an interrupt: nobody is waiting any more
            for ticket, _ in at.values():
                ticket.abandon()
            raise
        return _found(group, batch, answers)


def _sent(pool: Pool, group: Group, batch: Sequence[Completion], workers: int) -> Ticket:
    ticket = Ticket(
        [group.sent(completion) for completion in batch],
        [completion.node for completion in batch],
        (group.source,),
    )
    weights = [weight(completion) for completion in batch]
    each = max(1, min(_PARTS, sum(weights) // (workers * _LEAST_TOKENS))) if workers > 1 else 1
    pool.submit(ticket, balanced(weights, workers * each))
    return ticket


def _found(
    group: Group, batch: Sequence[Completion], answers: Sequence[Reading | Lost]
) -> list[Reading]:
    """Turn answers into readings: abstentions for texts that cost workers, and this process's own
    readings for texts no worker has tried."""
    from grpo_guard.guard.workers.plan import read_part

    found: dict[int, Reading] = {}
    here = []
    for i, answer in enumerate(answers):
        if not isinstance(answer, Lost):
            found[i] = answer
        elif answer.untried:
            here.append((i, answer.message))
        else:
            found[i] = tuple(
                abstain(one.name, answer.cause, f"lost with its worker process: {answer.message}")
                for one in group.runnables
            )
    if here:
        logger.warning("workers: %d texts are read in this process (%s)", len(here), here[0][1])
        with running(None):
            own = read_part(group.runnables, [batch[i] for i, _ in here])
        found |= {i: one for (i, _), one in zip(here, own, strict=True)}
    return [found[i] for i in range(len(batch))]


def _is_child() -> bool:
    """Whether this process is itself one of several started to share the cores."""
    children = sys.modules.get("multiprocessing.process")
    graders = sys.modules.get("grpo_guard.guard.grader_worker")
    return (
        (children is not None and children.parent_process() is not None)
        or (graders is not None and graders.inside)
        or "RAY_RAYLET_PID" in os.environ
    )
