"""A pool of workers that read parts of batches, and in which lost workers' parts are retried."""

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from grpo_guard.core.forks import Lock
from grpo_guard.core.quoting import one_line
from grpo_guard.core.verdict import Cause
from grpo_guard.guard.workers.ticket import Lost, Part, Ticket

logger = logging.getLogger("grpo_guard")

_PATIENCE: Final = 60.0
GIVES_WAY_AFTER: Final = 1.0
"""Seconds after which a worker reading early texts is replaced if a batch needs a worker."""
MOST_STARTS: Final = 3
"""Number of consecutive failed starts after which a worker's seat stays empty."""
_ENDED: Final = Lost(Cause.FAULT, "the workers were ended", untried=True)


class WorkersError(ConnectionError):
    """No worker could be started."""


class Engine(Protocol):
    """Starts, calls and ends workers: processes on this machine, or Ray actors."""

    label: str
    """Name for messages."""
    start_seconds: float
    """Time limit for a worker to start, in seconds."""
    absent: str
    """What to check if no worker starts, for messages."""

    @property
    def error(self) -> type[WorkersError]:
        """The exception to raise if no worker starts."""

    def start(self) -> Any:
        """Start a worker."""

    def ask(self, worker: Any, method: str, *args: Any) -> Future[Any]:
        """Call a method of a worker. ``start()`` returns a description of the worker, and
        ``read(objects, ...)`` returns one answer per object. Raises Exception if the arguments
        cannot be sent."""

    def end(self, worker: Any) -> None:
        """End a worker, even in the middle of a call."""

    def seconds(self, objects: Sequence[Any]) -> float:
        """Time limit for the answer to a part with these objects, in seconds."""

    def lacks(self) -> str:
        """Describe what a worker needs and what is available, for the log."""

    def is_memory(self, error: BaseException) -> bool:
        """Whether a worker was lost because memory ran out."""


@dataclass(slots=True, eq=False)
class _Seat:
    """A place for a worker: the worker, its current request, and the deadline for the answer."""

    number: int
    worker: Any = None
    promise: Future[Any] | None = None
    part: Part | None = None
    deadline: float = 0.0
    limit: float = 0.0
    is_up: bool = False
    failed_starts: int = 0
    closed: str = ""


@dataclass(frozen=True, slots=True)
class _Answer:
    """The outcome of a request; its ``promise`` identifies late answers from abandoned workers."""

    seat: _Seat
    promise: Future[Any]
    result: Any = field(default=None)
    error: BaseException | None = field(default=None)


class Pool:
    """Workers that read parts of batches. Safe to share between threads.

    The pool's own thread hands out parts and collects answers. A worker is replaced if it ends,
    raises, returns the wrong number of answers, or does not answer in time. Its part is retried
    elsewhere in halves, split between authors first, until the completion that costs workers is
    isolated; after `MOST_TRIES` that completion is `Lost`. Late answers from an abandoned worker
    are dropped, so nothing is answered twice.
    """

    def __init__(self, engine: Engine, workers: int) -> None:
        self._engine = engine
        self.workers = workers
        self._events: queue.SimpleQueue[_Answer | Part | None] = queue.SimpleQueue()
        self._waiting: deque[Part] = deque()
        self._open: list[Ticket] = []
        self._seats = [_Seat(i) for i in range(self.workers)]
        self._described: Any = None
        self._warned = False
        self.replaced = 0
        """Number of workers lost so far."""
        self._first = threading.Event()
        self._ending = Lock()
        self._ended = False
        name = f"grpo-guard-{engine.label}"
        self._thread = threading.Thread(target=self._work, daemon=True, name=name)
        self._thread.start()

    def described(self) -> Any:
        """Wait for the first worker to start, and return its description; raises WorkersError if no
        worker starts."""
        if not self._first.wait(_PATIENCE):
            logger.warning(
                "%s: none of %d workers is up after %g s; %s",
                self._engine.label, self.workers, _PATIENCE, self._engine.lacks(),
            )  # fmt: skip
        self._first.wait()
        if self._described is None:
            raise self._engine.error(self._no_workers())
        return self._described

    def submit(self, ticket: Ticket, parts: Sequence[list[int]]) -> None:
        """Send a batch to the workers, split into parts; `Ticket.answer` returns the results."""
        with self._ending:
            if self._ended:
                ticket.end(_ENDED)
            else:
                self._open = [one for one in self._open if not one.over] + [ticket]
                for places in parts:
                    self._events.put(Part(ticket, places))

    def close(self) -> None:
        """End all workers; pending answers become `Lost`."""
        self._events.put(None)
        # The garbage collector can finalise an owner in any thread, including the pool's own.
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=10)

    @property
    def up(self) -> list[Any]:
        """The workers that have started."""
        return [seat.worker for seat in self._seats if seat.is_up]

    @property
    def closed(self) -> bool:
        """Whether no workers are left and none will start."""
        return self._ended or all(seat.closed for seat in self._seats)

    def _work(self) -> None:
        try:
            for seat in self._seats:
                self._start(seat)
            while not self._ended:
                self._step()
        except Exception:  # whatever fails, nobody must be left waiting
            logger.exception("%s: the workers' thread ended", self._engine.label)
        finally:
            self._end()

    def _step(self) -> None:
        busy = [seat.deadline for seat in self._seats if seat.promise is not None]
        left = None if not busy else max(0.0, min(busy) - time.monotonic())
        try:
            event = self._events.get(timeout=left)
        except queue.Empty:
            for seat in self._seats:
                if seat.promise is not None and seat.deadline <= time.monotonic():
                    late = TimeoutError(f"no answer within {seat.limit:g} s")
                    self._failed(seat, late, Cause.TIMEOUT)
            event = None
        else:
            if event is None:
                self._ended = True
                return
            if isinstance(event, Part):
                self._waiting.append(event)
            elif event.seat.promise is event.promise:
                self._answered(event)
        self._hand_out()

    def _answered(self, answer: _Answer) -> None:
        seat, part = answer.seat, answer.seat.part
        if answer.error is not None:
            self._failed(seat, answer.error, self._cause(answer.error))
        elif not seat.is_up:
            seat.is_up, seat.promise, seat.failed_starts = True, None, 0
            self._described = self._described or answer.result
            self._first.set()
        elif part is not None:
            got = answer.result
            if not isinstance(got, list) or len(got) != len(part.places):
                count = len(got) if isinstance(got, list) else type(got).__name__
                wrong = f"expected {len(part.places)} answers, one per completion, got {count}"
                self._failed(seat, ValueError(wrong), Cause.FAULT)
                return
            seat.promise = seat.part = None
            part.ticket.put(part.places, got)

    def _hand_out(self) -> None:
        if all(seat.closed for seat in self._seats):
            while self._waiting:
                untried = Lost(Cause.FAULT, self._no_workers()[:300], untried=True)
                self._give_up(self._waiting.popleft(), untried)
            return
        for seat in self._seats:
            while seat.is_up and seat.promise is None and (part := self._next_for(seat)):
                shown = [part.ticket.batch[place] for place in part.places]
                limit = self._engine.seconds(shown)
                try:
                    self._ask(seat, "read", limit, shown, *part.ticket.arguments)
                except Exception as error:  # it cannot be pickled: not the worker's fault
                    self._retry(part, Lost(Cause.FAULT, _described(error)))
                else:
                    seat.part = part
        if any(not part.ticket.gives_way for part in self._waiting):
            soon = time.monotonic() + GIVES_WAY_AFTER
            for seat in self._seats:
                if seat.part is not None and seat.part.ticket.gives_way:
                    seat.deadline = min(seat.deadline, soon)

    def _next_for(self, seat: _Seat) -> Part | None:
        """Take the first waiting part for a seat. Parts already lost in this seat are skipped while
        another worker is up, and parts that give way are taken only if no other part is waiting."""
        others = any(other.is_up and other is not seat for other in self._seats)
        while self._waiting and self._waiting[0].ticket.over:
            self._waiting.popleft()  # nobody is waiting for it
        for gives_way in (False, True):
            for i, part in enumerate(self._waiting):
                avoided = part.avoid == seat.number and others
                if part.ticket.gives_way is gives_way and not avoided and not part.ticket.over:
                    del self._waiting[i]
                    return part
        return None

    def _start(self, seat: _Seat) -> None:
        try:
            seat.worker = self._engine.start()
            self._ask(seat, "start", self._engine.start_seconds)
        except Exception as error:
            self._failed(seat, error, Cause.FAULT)

    def _ask(self, seat: _Seat, method: str, seconds: float, *args: Any) -> None:
        promise = self._engine.ask(seat.worker, method, *args)
        seat.promise, seat.limit = promise, seconds
        seat.deadline = time.monotonic() + seconds

        def report(future: Future[Any]) -> None:
            error = future.exception()
            result = None if error is not None else future.result()
            self._events.put(_Answer(seat, promise, result, error))

        promise.add_done_callback(report)

    def _failed(self, seat: _Seat, error: BaseException, cause: Cause) -> None:
        """Replace a worker that was lost or did not start, and retry its part."""
        part, was_up = seat.part, seat.is_up
        reason = _described(error)
        self._empty(seat)
        seat.is_up = False
        self.replaced += was_up
        if not was_up:
            seat.failed_starts += 1
        if not self._warned:
            self._warned = True
            logger.warning(
                "%s: worker %d of %d was lost and is being replaced (%s); logged once",
                self._engine.label, seat.number + 1, self.workers, reason,
            )  # fmt: skip
        # Before any worker has started, one failure per seat is enough: `start` would raise again.
        if seat.failed_starts >= (MOST_STARTS if self._described else 1):
            seat.closed = reason
            if all(other.closed for other in self._seats):
                self._first.set()
        if part is not None:
            part.avoid = seat.number
            self._retry(part, Lost(cause, reason))
        if not seat.closed:
            self._start(seat)

    def _empty(self, seat: _Seat) -> None:
        if seat.worker is not None:
            self._engine.end(seat.worker)
        seat.worker = seat.promise = seat.part = None

    def _retry(self, part: Part, lost: Lost) -> None:
        """Retry the unanswered rest of a lost part, or give up on it."""
        smaller = part.ticket.smaller(part)
        for one in smaller:
            one.avoid = part.avoid
        self._waiting.extend(smaller)
        if not smaller:
            self._give_up(part, lost)

    def _give_up(self, part: Part, lost: Lost) -> None:
        part.ticket.put(part.places, [lost] * len(part.places))

    def _end(self) -> None:
        with self._ending:
            self._ended = True
            for ticket in self._open:
                ticket.end(_ENDED)
        for seat in self._seats:
            self._empty(seat)
            seat.closed = seat.closed or _ENDED.message
        self._first.set()

    def _cause(self, error: BaseException) -> Cause:
        if isinstance(error, TimeoutError):  # the engine noticed before this pool's own deadline
            return Cause.TIMEOUT
        return Cause.OUT_OF_MEMORY if self._engine.is_memory(error) else Cause.FAULT

    def _no_workers(self) -> str:
        reason = next((seat.closed for seat in self._seats if seat.closed), "they were ended")
        return (
            f"{self._engine.label}: expected {self.workers} workers to start, got none: {reason}; "
            f"{self._engine.absent}"
        )


def _described(error: BaseException) -> str:
    """Describe an error in one printable line, because its message could quote a completion or
    contain a whole traceback."""
    cause = getattr(error, "cause", None)
    error = cause if isinstance(cause, BaseException) else error
    lines = str(error).strip().splitlines() or [""]
    # If an actor could not even be created, Ray states the reason at the end of a traceback.
    line = lines[-1 if "creation task" in lines[0] else 0]
    return f"{type(error).__name__}: {one_line(line)}"
