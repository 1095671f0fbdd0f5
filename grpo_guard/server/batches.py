"""Scoring batches: which requests are judged together, how many at once, and how long they wait.

At low load a request is judged immediately. While a batch is being judged, new requests are
collected for the next batch. The requests of a batch share the cost of a call, but nothing that
affects a verdict (`supervise.supervised_each`): each request is admitted, recorded and settled
separately.

A thread cannot be killed. Its place is therefore freed when its work is done, not when its client
is answered: otherwise threads would pile up as requests time out.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

from starlette.requests import ClientDisconnect

from grpo_guard.core.supervise import supervised, supervised_each
from grpo_guard.core.verdict import Verdict
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.guard.admission import AdmittedBatch
from grpo_guard.server.late import given_up_by
from grpo_guard.server.limits import LARGE_BYTES, Limits
from grpo_guard.server.pace import Lane, Pace
from grpo_guard.server.replies import RequestError

logger = logging.getLogger("grpo_guard")
T = TypeVar("T")
Reading: TypeAlias = Callable[[], AbstractContextManager[None]]

TELLING_SECONDS = 10.0
"""Extra seconds after the deadline while the ledger records an answer: a ledger that other
processes write to can take five seconds, and the client should get the answer that was recorded."""


@dataclass(eq=False)
class Job(Generic[T]):
    """One request's work: ``admit`` runs before the verifier and returns None if the verifier is
    not needed; ``settle`` builds the answer from what was admitted and the verdicts on it."""

    admit: Callable[[], AdmittedBatch | None]
    settle: Callable[[AdmittedBatch | None, list[Verdict]], T]
    shares_calls: bool
    completions: int
    bytes: int
    given_up: threading.Event = field(default_factory=threading.Event)
    answer: asyncio.Future[T] = field(init=False)
    waits: bool = field(default=False, init=False)
    large: bool = field(default=False, init=False)
    asked_at: float = field(default=0.0, init=False)
    # Guards the decisions to give the job up, to record its answer, and to judge it again.
    lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    settling: bool = field(default=False, init=False)
    recording: bool = field(default=False, init=False)

    def leave(self) -> None:
        """Give the job up, unless the ledger is already recording its answer."""
        with self.lock:
            if not self.recording:
                self.given_up.set()

    def wanted(self, given_up: threading.Event) -> bool:
        """Whether a client is still waiting. If so, the ledger will record the answer."""
        with self.lock:
            self.recording |= not given_up.is_set()
            return not given_up.is_set()


class Batches:
    """Runs jobs in batches on behalf of the tasks on one event loop, which share the ``pace`` of
    large jobs with incoming bodies. The verifier runs in a context that ``reading`` creates; see
    `Guard.reading`."""

    def __init__(
        self,
        verifier: CompletionVerifier,
        limits: Limits,
        pace: Pace | None = None,
        reading: Reading = nullcontext,
    ) -> None:
        self._verifier, self._limits, self._reading = verifier, limits, reading
        self._waiting: deque[Job[Any]] = deque()
        self._pace = pace or Pace()
        self._large = Lane(limits, self._pace)
        self._free = limits.running
        self._joined_at = float("-inf")  # when the last joined batch at work began
        self._joined: _Batch | None = None
        self._looks_again = False
        self._idle: list[queue.SimpleQueue[_Batch]] = []

    async def answer(self, job: Job[T], deadline: float, *, patient: bool = False) -> T:
        """Wait for the job's answer without blocking, until ``deadline`` on the loop's clock. A
        ``patient`` job, which is part of a request already let in, may join a full queue.

        Raises:
            RequestError: 429 if too many jobs are waiting; 503 if the job was not started in time,
                or no thread could be started for it.
            TimeoutError: the job was started but has not finished. Its thread carries on and keeps
                its place.
            ClientDisconnect: the client left while the job waited.
            Exception: whatever the job's work raises.
        """
        job.large = patient or job.bytes > LARGE_BYTES
        if not patient:
            self.require_room(job.large)
        job.answer = asyncio.get_running_loop().create_future()
        job.asked_at = asyncio.get_running_loop().time()
        if not job.large:
            self._pace.make_way(job.asked_at)
        self._queue(job).append(job)
        job.waits = True
        self._begin()
        late = asyncio.get_running_loop().call_at(deadline, _expire, job)
        try:
            return await job.answer
        finally:
            late.cancel()
            if job.waits:
                self._queue(job).remove(job)

    def require_room(self, large: bool) -> None:
        """Raise RequestError 429 if the queue is full; large work also has a limit of its own."""
        most = self._limits.waiting
        full = not self._free and len(self._waiting) >= most
        # Large work may wait while places are free, so it is counted separately: it must not cause
        # small work to be refused.
        if full or (large and len(self._large.waiting) >= most):
            raise RequestError(429, "too many requests are waiting", retry=True)

    def _queue(self, job: Job[Any]) -> deque[Job[Any]]:
        return self._large.waiting if job.large else self._waiting

    def _begin(self) -> None:
        """Start every batch that can start now, small requests first."""
        while self._free and (batch := self._small() or self._of_large()) is not None:
            if not self._start(batch):
                return

    def _small(self) -> _Batch | None:
        """Take the next batch of small requests; None if no batch can start yet."""
        clock = asyncio.get_running_loop()
        if not _drop_gone(self._waiting):
            return None
        if self._waiting[0].shares_calls and self._joined is not None:
            # Only one joined batch at a time, because two would compete for the processor; but no
            # job waits longer than `Limits.batch_wait` for a slow batch.
            rest = self._joined_at + self._limits.batch_wait - clock.time()
            if rest > 0:
                self._joined.wake(clock, rest, self._begin)
                return None
        batch = _Batch(self._next())
        if batch.jobs[0].shares_calls:
            self._joined, self._joined_at = batch, clock.time()
        return batch

    def _of_large(self) -> _Batch | None:
        """Take the next large request or part of a stream; None if it has to wait."""
        clock, lane = asyncio.get_running_loop(), self._large
        if not _drop_gone(lane.waiting):
            return None
        now = clock.time()
        small = self._limits.running - self._free - lane.at_work
        others = bool(small or self._waiting)
        if (delay := lane.delay(now, lane.waiting[0].asked_at, others)) > 0:
            if not self._looks_again:
                self._looks_again = True
                clock.call_later(max(delay, 0.001), self._look_again)
            return None
        batch = _Batch([_taken(lane.waiting)])
        lane.begin(batch, now)
        return batch

    def _look_again(self) -> None:
        self._looks_again = False
        self._begin()

    def _next(self) -> list[Job[Any]]:
        jobs = [_taken(self._waiting)]
        size, held = jobs[0].completions, jobs[0].bytes
        while jobs[0].shares_calls and self._waiting and self._waiting[0].shares_calls:
            size, held = size + self._waiting[0].completions, held + self._waiting[0].bytes
            if size > self._limits.batch_size or held > LARGE_BYTES:
                break
            jobs.append(_taken(self._waiting))
        return jobs

    def _start(self, batch: _Batch) -> bool:
        loop = asyncio.get_running_loop()
        batch.loop, batch.done = loop, self._finish
        try:
            if not self._idle:
                self._idle.append(_thread(self._verifier, self._reading))
        except RuntimeError:
            refusal = RequestError(503, "no thread could be started", retry=True)
            batch.outcomes.extend((job, job.given_up, None, refusal) for job in batch.jobs)
            self._large.end(batch, loop.time())
            batch.deliver()
            return False
        self._free -= 1
        batch.calls = self._idle.pop()
        batch.calls.put(batch)
        if len(batch.jobs) > 1:
            batch.apart = loop.call_later(self._limits.seconds / 2, self._take_apart, batch)
        return True

    def _take_apart(self, batch: _Batch) -> None:
        """Judge each job of a hung batch separately: one of them may be the cause."""
        logger.warning("a batch of %d requests hangs; each is judged alone", len(batch.jobs))
        batch.deliver()
        for job in reversed(batch.jobs):
            with job.lock:
                # A job that is being settled would be settled, and recorded in the ledger, twice.
                if job.answer.done() or job.settling:
                    continue
                if job.given_up.is_set():
                    job.answer.set_exception(ClientDisconnect())
                    continue
                job.given_up.set()
                job.given_up, job.shares_calls, job.waits = threading.Event(), False, True
                self._waiting.appendleft(job)
        self._begin()

    def _finish(self, batch: _Batch) -> None:
        self._idle.append(batch.calls)
        self._free += 1
        self._large.end(batch, batch.loop.time())
        if self._joined is batch:
            self._joined = None
        batch.rest()
        batch.deliver()
        self._begin()


def _taken(waiting: deque[Job[Any]]) -> Job[Any]:
    job = waiting.popleft()
    job.waits = False
    return job


def _drop_gone(waiting: deque[Job[Any]]) -> bool:
    """Drop jobs at the head whose clients have left; return whether any job is left."""
    while waiting and waiting[0].given_up.is_set():
        gone = _taken(waiting)
        if not gone.answer.done():
            gone.answer.set_exception(ClientDisconnect())
    return bool(waiting)


def _expire(job: Job[Any], last: bool = False) -> None:
    if job.recording and not last:
        asyncio.get_running_loop().call_later(TELLING_SECONDS, _expire, job, True)
    elif not job.answer.done():
        refusal = RequestError(503, "no turn came up in time", retry=True)
        job.answer.set_exception(refusal if job.waits else TimeoutError())


_Outcome = tuple[Job[Any], threading.Event, Any, Exception | None]


class _Batch:
    """Jobs that are judged together, handed from the loop to a thread and back."""

    def __init__(self, jobs: list[Job[Any]]) -> None:
        self.jobs = jobs
        self.loop: asyncio.AbstractEventLoop
        self.done: Callable[[_Batch], None]
        self.calls: queue.SimpleQueue[_Batch]
        self.apart: asyncio.TimerHandle | None = None
        self.outcomes: deque[_Outcome] = deque()  # not delivered yet
        self._waking: asyncio.TimerHandle | None = None

    def wake(self, loop: asyncio.AbstractEventLoop, rest: float, begin: Callable[[], None]) -> None:
        """Call ``begin`` in ``rest`` seconds, unless this batch is done before then."""
        # A loop that counts whole milliseconds fires slightly early. In that case set the timer
        # again, because nothing else would call ``begin``.
        if self._waking is None or self._waking.when() <= loop.time() + 0.001:
            self._waking = loop.call_later(max(rest, 0.001), begin)

    def rest(self) -> None:
        """Cancel the timers of this batch."""
        for timer in (self.apart, self._waking):
            if timer is not None:
                timer.cancel()

    def deliver(self) -> None:
        """Deliver the settled answers to the jobs that are still waiting."""
        while self.outcomes:
            job, given_up, result, error = self.outcomes.popleft()
            if job.answer.done() or given_up is not job.given_up:  # answered, or judged separately
                if error is not None:
                    logger.error("work that had timed out failed", exc_info=error)
            elif error is not None:
                job.answer.set_exception(error)
            else:
                job.answer.set_result(result)

    def judge(self, verifier: CompletionVerifier) -> None:
        """Admit the jobs, ask the verifier once, and settle the jobs. Runs in a thread."""
        attempts = [_Attempt(job) for job in self.jobs]
        known = [attempt.run(attempt.job.admit) for attempt in attempts]
        opened = [k.unsettled if k else [] for k in known]
        found_each: Sequence[list[Verdict] | None]
        try:
            found_each = supervised_each(verifier, opened)
        except BaseException:  # SystemExit, say: a dead thread would keep its place
            alone = zip(attempts, opened, strict=True)
            found_each = [attempt.run(supervised, verifier, own) for attempt, own in alone]
        for attempt, *found in zip(attempts, known, found_each, strict=True):
            with attempt.job.lock:
                attempt.job.settling |= attempt.given_up is attempt.job.given_up
            result = attempt.run(attempt.job.settle, *found)
            self.outcomes.append((attempt.job, attempt.given_up, result, attempt.error))
        try:
            self.loop.call_soon_threadsafe(self.done, self)
        except RuntimeError:
            logger.warning("the server stopped before its work was done")


class _Attempt:
    """One job's steps, run in a context that knows whether its client is still waiting."""

    def __init__(self, job: Job[Any]) -> None:
        self.job, self.given_up = job, job.given_up
        self.error: Exception | None = None
        self._context = copy_context()
        self._context.run(given_up_by, self.given_up, partial(job.wanted, self.given_up))

    def run(self, step: Callable[..., T], *args: Any) -> T | None:
        """Run a step and return its result; None if this or an earlier step failed."""
        if self.error is not None:
            return None
        try:
            return self._context.run(step, *args)
        except BaseException as raised:
            # A future refuses StopIteration; and a TimeoutError that the work itself raises is a
            # failure, not our deadline.
            if isinstance(raised, Exception) and not isinstance(raised, _NOT_RAISED):
                self.error = raised
            else:
                self.error = RuntimeError(f"{type(raised).__name__}: {raised!s:.200}")
                self.error.__cause__ = raised
            return None


_NOT_RAISED = (StopIteration, TimeoutError)


def _thread(verifier: CompletionVerifier, reading: Reading) -> queue.SimpleQueue[_Batch]:
    """Start a thread that judges the batches put into the returned queue; raises RuntimeError if
    no thread can be started. The thread is a daemon: the pools of asyncio and concurrent.futures
    join their threads at exit, so one hung verifier would keep the process from ending."""
    calls: queue.SimpleQueue[_Batch] = queue.SimpleQueue()

    def work() -> None:
        while True:
            batch = calls.get()
            with reading():
                batch.judge(verifier)
            del batch

    threading.Thread(target=work, daemon=True, name="grpo-guard-batch").start()
    return calls
