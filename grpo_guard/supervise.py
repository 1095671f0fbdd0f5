"""Running a verifier that may raise, miscount or hang, so that each completion gets a verdict.

Every call of a verifier by the library goes through `supervised`. What goes wrong inside becomes
ABSTAIN with its cause; the training step goes on.
"""

from __future__ import annotations

import contextvars
import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from grpo_guard.completion import Completion
from grpo_guard.verdict import Cause, Outcome, Verdict, abstain

logger = logging.getLogger("grpo_guard")

# A thread cannot be killed. A verifier that hangs again and again would leave one behind per batch,
# so past this many it is not called until one of them returns.
MAX_HUNG_CALLS = 2
# An outage fails every part of a batch: stop isolating once failures outnumber both this and the
# completions that went through. Halving level by level clears the good parts first, so that
# culprits who are fewer than a third of a batch can never make it stop.
MAX_ISOLATED_FAILURES = 8

# Failures of a whole service. Each part of a batch would meet the same one, after all its retries.
ENGINE_WIDE = frozenset({Cause.TIMEOUT, Cause.RATE_LIMITED, Cause.CIRCUIT_OPEN})

# Keyed by id(verifier), because a verifier may be unhashable; the hung thread keeps it alive.
_hung: dict[int, int] = {}
_hung_lock = threading.Lock()


# A rule takes some 12 us a character at worst (`arithmetic` on equations without end), so this is
# a tenth of the default time-out. Without it one author's 240 texts of 250,000 characters would
# have everybody's batch abstained on.
MOST_CHARACTERS = 4_000_000


class Runnable(Protocol):
    """What of a `CompletionVerifier` is needed to run it."""

    @property
    def name(self) -> str:
        """Stands in verdicts."""

    @property
    def timeout(self) -> float | None:
        """Seconds that one batch may take; None = unlimited."""

    @property
    def judges_alone(self) -> bool:
        """Whether a verdict depends on its own completion alone."""

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        """One verdict per completion, in the same order."""


class _HungError(Exception):
    """The call did not return in time."""


class _CircuitOpenError(Exception):
    """Earlier calls are still hanging."""


class _GivenUpError(RuntimeError):
    """Not tried, because too much else failed; for the cause of the last failure."""

    def __init__(self, cause: Cause | None) -> None:
        self.cause = cause
        super().__init__("too many failures in this batch; the rest was not tried")


def supervised(verifier: Runnable, batch: Sequence[Completion]) -> list[Verdict]:
    """One verdict per completion, in order, whatever the verifier does.

    When a batch raises, it is halved until the completions that cause it stand alone. Otherwise
    one node could write a single completion that breaks the verifier and so switch the check off
    for everybody else's.

    An exception may say what the abstention is to be called, by an attribute ``cause``, and whether
    it befell the engine as a whole, by a bool ``engine_wide``; then halving is left out. Without
    the latter, a time-out, a rate limit and an open circuit are engine-wide, and nothing else is.
    """
    batch = tuple(batch)
    return [
        verdict
        for start, end in _portions(verifier, batch)
        for verdict in _portion(verifier, batch[start:end])
    ]


def _portions(verifier: Runnable, batch: tuple[Completion, ...]) -> list[tuple[int, int]]:
    """What is shown in one call, each with a time-out of its own: [start, end) in the batch."""
    if not verifier.judges_alone or verifier.timeout is None:
        return [(0, len(batch))]
    found, start, characters = [], 0, 0
    for i, completion in enumerate(batch):
        characters += len(completion.text)
        if characters > MOST_CHARACTERS and i > start:
            found.append((start, i))
            start, characters = i, len(completion.text)
    return [*found, (start, len(batch))]


def _portion(verifier: Runnable, batch: tuple[Completion, ...]) -> list[Verdict]:
    """The verdicts of one portion, halved where it raises."""
    deadline = None if verifier.timeout is None else time.monotonic() + verifier.timeout
    verdicts: list[Verdict | None] = [None] * len(batch)
    parts = deque([(0, len(batch))] if batch else [])
    failed = done = 0
    last: Cause | None = None
    told = set[str]()  # one outage is one line in the log, and not one for each completion
    while parts:
        start, end = parts.popleft()
        started = time.monotonic()
        try:
            if failed > max(MAX_ISOLATED_FAILURES, done):
                raise _GivenUpError(last)
            part = _checked(verifier, _answer(verifier, batch[start:end], deadline), end - start)
        except Exception as error:
            last = _cause_of(error)
            if (
                end - start > 1
                and not _engine_wide(error)
                and failed <= max(MAX_ISOLATED_FAILURES, done)
            ):
                middle = (start + end) // 2
                parts += [(start, middle), (middle, end)]
                continue
            failed += end - start
            part = [_failure(verifier, error, told)] * (end - start)
        else:
            done += end - start
        share = (time.monotonic() - started) / (end - start)
        verdicts[start:end] = [v if v.seconds else v.taking(share) for v in part]
    return [v for v in verdicts if v is not None]


def _checked(verifier: Runnable, result: object, expected: int) -> list[Verdict]:
    if not isinstance(result, Sequence) or not all(isinstance(v, Verdict) for v in result):
        raise TypeError(f"{verifier.name}.verify: expected a list of Verdict, got {result!r:.80}")
    if len(result) != expected:
        raise ValueError(
            f"{verifier.name}.verify: expected {expected} verdicts, one per completion, "
            f"got {len(result)}"
        )
    return list(result)


def _failure(verifier: Runnable, error: Exception, told: set[str]) -> Verdict:
    if isinstance(error, _HungError):
        return abstain(verifier.name, Cause.TIMEOUT, f"no answer within {verifier.timeout} s")
    if isinstance(error, _CircuitOpenError):
        return abstain(verifier.name, Cause.CIRCUIT_OPEN, str(error))
    # A message may quote a completion, which must not write lines of its own into logs.
    said = "".join(c if c.isprintable() else " " for c in f"{error!s:.200}")
    reason = f"{type(error).__name__}: {said}"
    # torch names its class OutOfMemoryError; comparing the name avoids importing torch here.
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return abstain(verifier.name, Cause.OUT_OF_MEMORY, reason)
    named = _cause_of(error)
    cause = named or Cause.FAULT
    if type(error).__name__ not in told:
        told.add(type(error).__name__)
        trace = None if named or isinstance(error, _GivenUpError) else error
        logger.warning("verifier %s: %s (%s)", verifier.name, reason, cause, exc_info=trace)
    return abstain(verifier.name, cause, reason)


def _cause_of(error: Exception) -> Cause | None:
    """What the exception itself calls the abstention, if it may."""
    cause = getattr(error, "cause", None)
    if not isinstance(cause, Cause) or Outcome.ABSTAIN not in cause.outcomes:
        return None  # a failure is nobody's verdict: an author's cause would reject for it
    # Combinators skip NOT_APPLICABLE, so that a failing member would silently be none at all.
    return None if cause is Cause.NOT_APPLICABLE else cause


def _engine_wide(error: Exception) -> bool:
    if isinstance(error, _HungError | _CircuitOpenError):
        return True
    said = getattr(error, "engine_wide", None)
    return said if isinstance(said, bool) else _cause_of(error) in ENGINE_WIDE


_Job = tuple[Callable[[], object], "queue.SimpleQueue[_Answer]", "_Hang"]
_Answer = tuple[object, Exception | None]


@dataclass(slots=True)
class _Hang:
    """Whether a call was given up; guarded by `_hung_lock`, together with the count."""

    verifier: int
    given_up: bool = False


# Threads that wait for a call, the last one used on top: starting one costs more than a quick
# verifier does. A burst of calls leaves only a few behind.
MOST_IDLE = 4
_idle: list[queue.SimpleQueue[_Job | None]] = []
# A fork's child has the list and not the threads.
os.register_at_fork(after_in_child=_idle.clear)


def _answer(verifier: Runnable, batch: tuple[Completion, ...], deadline: float | None) -> object:
    """What the verifier says, from a thread that can be left behind."""
    if deadline is None:
        return verifier.verify(batch)
    if time.monotonic() >= deadline:
        raise _HungError
    if _hung.get(id(verifier), 0) >= MAX_HUNG_CALLS:
        raise _CircuitOpenError(f"{MAX_HUNG_CALLS} earlier calls have not returned yet")
    answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
    hang = _Hang(id(verifier))
    run = partial(contextvars.copy_context().run, verifier.verify, batch)
    try:
        jobs = _idle.pop()
    except IndexError:
        jobs = queue.SimpleQueue()
        threading.Thread(target=_work, args=(jobs,), daemon=True, name="grpo-guard").start()
    jobs.put((run, answers, hang))
    try:
        result, error = answers.get(timeout=max(0.0, deadline - time.monotonic()))
    except queue.Empty:
        with _hung_lock:
            if answers.empty():
                hang.given_up = True
                _hung[hang.verifier] = _hung.get(hang.verifier, 0) + 1
                raise _HungError from None
            result, error = answers.get()
    if len(_idle) < MOST_IDLE:
        _idle.append(jobs)
    else:
        jobs.put(None)
    if error is not None:
        raise error
    return result


def _work(jobs: queue.SimpleQueue[_Job | None]) -> None:
    """Call verifiers one after the other, until one of them took longer than it may."""
    while (job := jobs.get()) is not None:
        run, answers, hang = job
        try:
            answer: _Answer = (run(), None)
        except Exception as error:
            answer = (None, error)
        except BaseException as error:  # SystemExit, or a panic in an extension: a fault like any
            answer = (None, RuntimeError(f"{type(error).__name__}: {error!s:.200}"))
        with _hung_lock:
            answers.put(answer)
            if hang.given_up:
                _hung[hang.verifier] -= 1
                return
        del (
            job,
            run,
            answers,
            hang,
            answer,
        )  # a model must not outlive its guard in a waiting thread
