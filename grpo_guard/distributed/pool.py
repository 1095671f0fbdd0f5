"""A pool of actors that share the parts of batches, and retry the parts of lost actors."""

from __future__ import annotations

import logging
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from grpo_guard.distributed.cluster import ClusterError, shared
from grpo_guard.distributed.ticket import Lost, Part, Ticket
from grpo_guard.verdict import Cause

logger = logging.getLogger("grpo_guard")

START_SECONDS: Final = 600.0
"""Time for a worker to start, in which it may load a model."""
_ROOM_SECONDS: Final = 10.0
_PATIENCE: Final = 60.0
MOST_STARTS: Final = 3
"""Failed starts in a row after which a worker's seat stays empty."""
_ENDED: Final = Lost(Cause.FAULT, "the workers were ended")


@dataclass(slots=True, eq=False)
class _Seat:
    """A worker's place: its actor, its current request, and the deadline for the answer."""

    number: int
    actor: Any = None
    promise: Any = None
    part: Part | None = None
    deadline: float = 0.0
    is_up: bool = False
    failed_starts: int = 0
    closed: str = ""


@dataclass(frozen=True, slots=True)
class _Answer:
    """The outcome of a request; ``promise`` tells it from those of abandoned actors."""

    seat: _Seat
    promise: Any
    result: Any = field(default=None)
    error: BaseException | None = field(default=None)


class Pool:
    """Workers on a Ray cluster that this process has joined. Safe to share between threads.

    Its own thread hands out parts and takes answers. An actor that ends, raises, gives too few
    answers or none in time is replaced. Its part is retried elsewhere in halves, split between
    authors first, until the completion that costs actors is alone; after `MOST_TRIES` it is `Lost`.
    Late answers of an abandoned actor are dropped, so nothing is answered twice.

    Args:
        kind: The worker class: ``start()`` sets it up and returns a description, and
            ``read(part, ...)`` returns one answer per element.
        args: Arguments of the class.
        workers: How many; None = as many as ``resources`` allow.
        resources: Per worker, by Ray's names, also fractions: ``{"CPU": 1, "GPU": 0.5}``.
        timeout: Seconds that a part may take.
        fixed: Whether the cluster cannot grow, so that a lack of room is an error at once.

    Raises:
        ClusterError: no worker starts, with the reason.
    """

    def __init__(
        self,
        kind: type,
        args: tuple[Any, ...],
        *,
        workers: int | None,
        resources: Mapping[str, float],
        timeout: float,
        fixed: bool,
    ) -> None:
        import ray

        self._ray: Any = ray
        self._resources = {"CPU": 1.0, **resources}
        self.workers = workers or self._room()
        if fixed:
            self._check_room()
        custom = {k: v for k, v in self._resources.items() if k not in ("CPU", "GPU")}
        self._kind = ray.remote(
            num_cpus=self._resources["CPU"], num_gpus=self._resources.get("GPU", 0.0),
            resources=custom, max_restarts=0, scheduling_strategy="SPREAD",
        )(kind)  # fmt: skip
        self._args, self._timeout = args, timeout
        self._events: queue.SimpleQueue[_Answer | Part | None] = queue.SimpleQueue()
        self._waiting: deque[Part] = deque()
        self._open: list[Ticket] = []
        self._seats = [_Seat(i) for i in range(self.workers)]
        self._described: Any = None
        self._warned = False
        self._first = threading.Event()
        self._ending = threading.Lock()
        self._ended = False
        self._thread = threading.Thread(target=self._work, daemon=True, name="grpo-guard-ray")
        self._thread.start()

    def described(self) -> Any:
        """Return the description of the first worker to start; waits for it.

        Raises:
            ClusterError: none starts.
        """
        if not self._first.wait(_PATIENCE):
            logger.warning(
                "ray: none of %d workers is up after %g s; each needs %s, the cluster has %s free",
                self.workers, _PATIENCE, self._resources, self._free(),
            )  # fmt: skip
        self._first.wait()
        if self._described is None:
            raise ClusterError(self._no_workers())
        return self._described

    def submit(self, ticket: Ticket, parts: Sequence[list[int]]) -> None:
        """Send out a batch; `Ticket.answer` returns the results.

        Args:
            ticket: The batch.
            parts: Its indices, each in one part.
        """
        with self._ending:
            if self._ended:
                ticket.end(_ENDED)
            else:
                self._open = [one for one in self._open if not one.over] + [ticket]
                for places in parts:
                    self._events.put(Part(ticket, places))

    def close(self) -> None:
        """End all actors; pending answers become `Lost`."""
        self._events.put(None)
        self._thread.join(timeout=10)

    def _room(self) -> int:
        there = self._ray.cluster_resources()
        each = [there.get(k, 0.0) / v for k, v in self._resources.items() if v]
        return max(1, int(min(each, default=1.0)))

    def _check_room(self) -> None:
        """Raise if there is no room: a cluster on this machine never grows, so do not wait."""
        until = time.monotonic() + _ROOM_SECONDS  # released resources show up a little later
        while short := self._short_of(self._free()):
            if time.monotonic() > until:
                name, each, free = short
                raise ClusterError(
                    f"workers, resources: expected room for {self.workers} x {each:g} {name} on "
                    f"this machine, got {free:g}; take fewer workers, or a smaller share each by "
                    f"resources={{{name!r}: ...}}"
                )
            time.sleep(0.2)

    def _free(self) -> dict[str, float]:
        free: dict[str, float] = self._ray.available_resources()
        return {name: free.get(name, 0.0) for name in self._resources}

    def _short_of(self, free: Mapping[str, float]) -> tuple[str, float, float] | None:
        for name, each in self._resources.items():
            if each * self.workers > (left := free.get(name, 0.0)) + 1e-9:
                return name, each, left
        return None

    def _work(self) -> None:
        try:
            for seat in self._seats:
                self._start(seat)
            while not self._ended:
                self._step()
        except Exception:  # whatever fails in Ray, nobody must be left waiting
            logger.exception("ray: the workers' thread ended")
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
                    seconds = START_SECONDS if not seat.is_up else self._timeout
                    late = TimeoutError(f"no answer within {seconds:g} s")
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
                self._give_up(self._waiting.popleft(), Lost(Cause.FAULT, self._no_workers()[:300]))
            return
        for seat in self._seats:
            while seat.is_up and seat.promise is None and (part := self._next_for(seat)):
                shown = [part.ticket.batch[place] for place in part.places]
                try:
                    self._ask(seat, "read", self._timeout, shown, *part.ticket.arguments)
                except Exception as error:  # it cannot be pickled: not the worker's fault
                    self._retry(part, Lost(Cause.FAULT, _one_line(error)))
                else:
                    seat.part = part

    def _next_for(self, seat: _Seat) -> Part | None:
        """The first waiting part that was not lost in this seat, unless only this one is up."""
        others = any(other.is_up and other is not seat for other in self._seats)
        for i, part in enumerate(self._waiting):
            if part.avoid != seat.number or not others:
                del self._waiting[i]
                return part
        return None

    def _start(self, seat: _Seat) -> None:
        try:
            self._check_ray()
            seat.actor = self._kind.remote(*self._args)
            self._ask(seat, "start", START_SECONDS)
        except Exception as error:
            self._failed(seat, error, Cause.FAULT)

    def _ask(self, seat: _Seat, method: str, seconds: float, *args: Any) -> None:
        self._check_ray()
        promise = getattr(seat.actor, method).remote(*args)
        seat.promise, seat.deadline = promise, time.monotonic() + seconds

        def report(future: Any) -> None:
            error = future.exception()
            result = None if error is not None else future.result()
            self._events.put(_Answer(seat, promise, result, error))

        promise.future().add_done_callback(report)

    def _check_ray(self) -> None:
        """Check that Ray still runs; otherwise it would start a new one that nobody ends."""
        if not self._ray.is_initialized():
            raise ClusterError("Ray was shut down in this process")

    def _failed(self, seat: _Seat, error: BaseException, cause: Cause) -> None:
        """Replace a worker that is lost or did not start, and retry its part."""
        part, was_up = seat.part, seat.is_up
        reason = _one_line(error)
        self._empty(seat)
        seat.is_up = False
        if not was_up:
            seat.failed_starts += 1
        if not self._warned:
            self._warned = True
            logger.warning("ray: worker %d of %d is lost and is replaced (%s); logged once",
                           seat.number + 1, self.workers, reason)  # fmt: skip
        # Before any worker has started, one failure per seat is enough: `make` would raise again.
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
        if seat.actor is not None and self._ray.is_initialized():
            self._ray.kill(seat.actor)
        seat.actor = seat.promise = seat.part = None

    def _retry(self, part: Part, lost: Lost) -> None:
        """Retry what a lost part still needs, or give up on it."""
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
        memory = self._ray.exceptions.OutOfMemoryError
        return Cause.OUT_OF_MEMORY if isinstance(error, memory | MemoryError) else Cause.FAULT

    def _no_workers(self) -> str:
        reason = next((seat.closed for seat in self._seats if seat.closed), "they were ended")
        return (
            f"ray: expected {self.workers} workers to start, got none: {reason}; what `make` needs "
            "(packages, files, GPUs) has to be on every machine of the cluster"
        )


def _one_line(error: BaseException) -> str:
    """One printable line: a message may quote a completion, or contain a whole traceback."""
    cause = getattr(error, "cause", None)
    error = cause if isinstance(cause, BaseException) else error
    lines = str(error).strip().splitlines() or [""]
    # If an actor could not even be created, Ray gives the reason at the end of a traceback.
    line = lines[-1 if "creation task" in lines[0] else 0]
    text = "".join(c if c.isprintable() else " " for c in line[:300])
    return f"{type(error).__name__}: {text}"


def joined(
    kind: type,
    args: tuple[Any, ...],
    *,
    workers: int | None,
    resources: Mapping[str, float] | None,
    timeout: float,
    address: str | None,
    owner: object,
) -> tuple[Pool, Callable[[], object]]:
    """Join a cluster and start workers; return them with a function that ends both.

    The end of ``owner`` calls that function too.

    Raises:
        RayMissingError, ClusterError: see `connect`, or there is no room.
        ValueError: a number is out of range.
    """
    if workers is not None and (type(workers) is not int or workers < 1):
        raise ValueError(f"workers: expected an integer >= 1 or None, got {workers!r}")
    for name, share in (resources or {}).items():
        if type(share) not in (int, float) or share < 0:
            raise ValueError(f"resources.{name}: expected a number >= 0, got {share!r}")
    if type(timeout) not in (int, float) or not timeout > 0:
        raise ValueError(f"timeout: expected seconds above 0, got {timeout!r}")
    shared.join(address)
    try:
        pool = Pool(
            kind, args, workers=workers, resources=resources or {}, timeout=timeout,
            fixed=shared.begun,
        )  # fmt: skip
    except BaseException:
        shared.leave()
        raise
    return pool, weakref.finalize(owner, _close, pool)


def _close(pool: Pool) -> None:
    pool.close()
    shared.leave()
