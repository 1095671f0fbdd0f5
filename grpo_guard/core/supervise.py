"""Run verifiers that might raise, miscount or hang, so that each completion gets a verdict.

Every verifier call in the library goes through `supervised`. A failure inside it becomes an ABSTAIN
that states the cause, and the training step continues.
"""

import contextvars
import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol

from grpo_guard.core.completion import Completion
from grpo_guard.core.forks import Lock
from grpo_guard.core.quoting import counted, shown
from grpo_guard.core.scope import MOST_CHARACTERS as MOST_CHARACTERS
from grpo_guard.core.scope import Runnable as Runnable
from grpo_guard.core.verdict import Cause, Outcome, Verdict, abstain

logger = logging.getLogger("grpo_guard")

_PACKAGE: Final = f"{Path(__file__).parents[1]}{os.sep}"

# A thread cannot be killed. A verifier that kept hanging would leave a thread behind for every
# batch, so after this many hung calls it is not called again until one of them returns.
MAX_HUNG_CALLS = 2
# In an outage every part of a batch fails: stop isolating completions once failures outnumber both
# this limit and the completions that succeeded. Halving level by level clears the good parts first,
# so that culprits who sent less than a third of a batch can never stop the isolation.
MAX_ISOLATED_FAILURES = 8

# Service-wide failures. Every part of a batch would fail the same way after all its retries.
ENGINE_WIDE = frozenset({Cause.TIMEOUT, Cause.RATE_LIMITED, Cause.CIRCUIT_OPEN})

# Number of hung calls, by id(verifier), because a verifier can be unhashable (the hung thread keeps
# it alive), and by whether the call covered several senders' batches. Such a call is repeated batch
# by batch and would count twice: one sender could then open the circuit for all others.
_hung: dict[tuple[int, bool], int] = {}
_hung_lock = Lock()


class Elsewhere(Protocol):
    """Runs some verifiers outside this process."""

    def verdicts(self, verifier: Runnable, batch: Sequence[Completion]) -> list[Verdict] | None:
        """Return what `supervised` would return; None if the verifier must run in this process."""


# A context variable reaches only the verifier threads of its own batch.
_elsewhere: contextvars.ContextVar[Elsewhere | None] = contextvars.ContextVar(
    "elsewhere", default=None
)


@contextmanager
def running(elsewhere: Elsewhere | None) -> Iterator[None]:
    """Make `supervised` ask ``elsewhere`` for verdicts within this context before running a
    verifier itself. With None, it runs all verifiers itself."""
    token = _elsewhere.set(elsewhere)
    try:
        yield
    finally:
        _elsewhere.reset(token)


def from_elsewhere(verifier: Runnable, batch: Sequence[Completion]) -> list[Verdict] | None:
    """Return verdicts reached outside this process, or None if the verifier must run here."""
    elsewhere = _elsewhere.get()
    return None if elsewhere is None or not batch else elsewhere.verdicts(verifier, batch)


class _HungError(Exception):
    """A verifier call did not return in time."""


class _CircuitOpenError(Exception):
    """The verifier is not called, because earlier calls are still hanging."""


class _AnswerError(TypeError):
    """The verifier returned something other than one verdict per completion."""


class _GivenUpError(RuntimeError):
    """Some completions were not tried, because too many others failed.

    `cause` is the cause of the last failure.
    """

    def __init__(self, cause: Cause | None) -> None:
        self.cause = cause
        super().__init__("too many failures in this batch; the rest was not tried")


def supervised(verifier: Runnable, batch: Sequence[Completion]) -> list[Verdict]:
    """Return one verdict per completion, in order, whatever the verifier does.

    If the verifier raises on a batch, the batch is halved until the completions that cause the
    error are isolated. Otherwise one node could switch off the check for everybody with a single
    completion that breaks the verifier.

    An exception can name the abstention's cause in a ``cause`` attribute. A bool ``engine_wide``
    can say whether the error affects the whole engine, in which case the batch is not halved;
    without this attribute, only a time-out, a rate limit and an open circuit are engine-wide.
    """
    batch = tuple(batch)
    if (known := from_elsewhere(verifier, batch)) is not None:
        return known
    verdicts: list[Verdict | None] = [None] * len(batch)
    for portion in _portions(verifier, batch):
        deadline = None if verifier.timeout is None else time.monotonic() + verifier.timeout
        failures = _Failures(verifier)
        parts = deque([portion])
        while parts:
            start, end = parts.popleft()
            part, started = batch[start:end], time.monotonic()
            try:
                failures.stop_in_an_outage()
                if deadline is None:
                    answer: object = verifier.verify(part)
                else:
                    answer = _call_limited(verifier, partial(verifier.verify, part), deadline)
                found = _checked(verifier, answer, end - start)
            except Exception as error:
                if failures.may_be_isolated(error, end - start):
                    middle = (start + end) // 2
                    parts += [(start, middle), (middle, end)]
                    continue
                found = [failures.verdict(error, end - start)] * (end - start)
            else:
                failures.done += end - start
            verdicts[start:end] = _timed(found, started)
    return [v for v in verdicts if v is not None]


def supervised_each(
    verifier: Runnable, batches: Sequence[Sequence[Completion]]
) -> list[list[Verdict]]:
    """Run `supervised` for separate batches, in one call if the verifier ``shares_calls``.

    Batches share the work on single completions, but nothing that affects a decision. If the call
    raises, miscounts or hangs, each batch is verified on its own: one sender's completions must not
    use up the failures and time allowed to others.
    """
    sizes = [len(batch) for batch in batches]
    if sum(map(bool, sizes)) > 1 and verifier.shares_calls:
        if verifier.scope == "completion":
            everyone = [completion for batch in batches for completion in batch]
            if (known := from_elsewhere(verifier, everyone)) is not None:
                left = iter(known)
                return [list(islice(left, size)) for size in sizes]
        started = time.monotonic()
        deadline = None if verifier.timeout is None else started + verifier.timeout
        try:
            ask = partial(_jointly, verifier, batches)
            answer = _call_limited(verifier, ask, deadline, jointly=True)
            found = iter(_timed(_checked(verifier, answer, sum(sizes)), started))
            return [list(islice(found, size)) for size in sizes]
        except Exception as error:
            logger.debug("verifier %s: %r; each batch by itself", verifier.name, error)
    return [supervised(verifier, batch) for batch in batches]


def _jointly(verifier: Runnable, batches: Sequence[Sequence[Completion]]) -> object:
    each = verifier.verify_each(batches)
    for batch, verdicts in zip(batches, each, strict=True):
        _checked(verifier, verdicts, len(batch))  # wrong counts can cancel out
    return [verdict for verdicts in each for verdict in verdicts]


def _timed(found: Sequence[Verdict], started: float) -> list[Verdict]:
    """Give verdicts that have no recorded time an equal share of the elapsed time."""
    share = (time.monotonic() - started) / max(1, len(found))
    # Most verdicts are the same object, and remain a single object.
    taken = {id(v): v for v in found}
    for at, v in taken.items():
        taken[at] = v if v.seconds else v.taking(share)
    return [taken[id(v)] for v in found]


def _portions(verifier: Runnable, batch: tuple[Completion, ...]) -> list[tuple[int, int]]:
    """Split a batch into slices [start, end), each judged in one call with its own time-out."""
    if not batch:
        return []
    most = verifier.most_characters if verifier.scope == "completion" else None
    if most is None or verifier.timeout is None:
        return [(0, len(batch))]
    found, start, characters = [], 0, 0
    for i, completion in enumerate(batch):
        characters += len(completion.text)
        if characters > most and i > start:
            found.append((start, i))
            start, characters = i, len(completion.text)
    return [*found, (start, len(batch))]


class _Failures:
    """Counts the failures in one portion of a batch, and builds their verdicts."""

    def __init__(self, verifier: Runnable) -> None:
        self.done = 0
        self._verifier = verifier
        self._failed = 0
        self._last: Cause | None = None
        # An outage gets one line in the log, rather than one per completion.
        self._logged = set[str]()

    def stop_in_an_outage(self) -> None:
        """Raise _GivenUpError once too many completions have failed to justify going on."""
        if self._too_many:
            raise _GivenUpError(self._last)

    @property
    def _too_many(self) -> bool:
        return self._failed > max(MAX_ISOLATED_FAILURES, self.done)

    def may_be_isolated(self, error: Exception, size: int) -> bool:
        """Whether to try the halves of a part of ``size`` completions after ``error``."""
        self._last = cause_of(error)
        if isinstance(error, _AnswerError):
            # A programming error. Single completions might still pass, so log the error here.
            self._log(error, str(error))
        return size > 1 and not engine_wide(error) and not self._too_many

    def verdict(self, error: Exception, size: int) -> Verdict:
        """Build the abstention given to each of ``size`` completions that are not split further."""
        self._failed += size
        name = self._verifier.name
        if isinstance(error, _HungError):
            return abstain(name, Cause.TIMEOUT, f"no answer within {self._verifier.timeout} s")
        if isinstance(error, _CircuitOpenError):
            return abstain(name, Cause.CIRCUIT_OPEN, str(error))
        # A message can quote a completion, which must not add lines of its own to logs.
        message = "".join(c if c.isprintable() else " " for c in f"{error!s:.200}")
        of_answer = isinstance(error, _AnswerError)
        reason = message if of_answer else f"{type(error).__name__}: {message}"
        # The class in torch is OutOfMemoryError; comparing the name avoids importing torch here.
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
            return abstain(name, Cause.OUT_OF_MEMORY, reason)
        named = cause_of(error)
        cause = named or Cause.FAULT
        if not of_answer:
            trace = None if named or isinstance(error, _GivenUpError) else _own_frames(error)
            self._log(error, f"verifier {name}: {reason} ({cause})", trace)
        return abstain(name, cause, reason)

    def _log(self, error: Exception, line: str, trace: Any = None) -> None:
        kind = type(error).__name__
        if kind not in self._logged:
            self._logged.add(kind)
            logger.warning("%s", line, exc_info=trace)


def _own_frames(error: Exception) -> tuple[type[Exception], Exception, TracebackType | None]:
    """Return an error for the log, with its frames from the verifier's own code onwards.

    The preceding calls within this package say nothing about the error. An error raised by one of
    this package's own verifiers keeps all of its frames.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        trace = trace.tb_next
    return type(error), error, trace or error.__traceback__


def _checked(verifier: Runnable, result: object, expected: int) -> list[Verdict]:
    where = f"{verifier.name}.verify"
    if not isinstance(result, list | Sequence) or isinstance(result, str):
        raise _AnswerError(f"{where}: expected a list of Verdict, got {shown(result)}")
    if not all(issubclass(kind, Verdict) for kind in set(map(type, result))):
        i, item = next((i, v) for i, v in enumerate(result) if not isinstance(v, Verdict))
        raise _AnswerError(
            f"{where}: item {i}: expected accept(...), reject(...) or abstain(...), "
            f"got {shown(item)}"
        )
    if len(result) != expected:
        raise _AnswerError(
            f"{where}: expected {counted(expected, 'verdict')}, one per completion, "
            f"got {len(result)}"
        )
    return list(result)


def cause_of(error: Exception) -> Cause | None:
    """Return the abstention cause named by an exception; None if it names no valid cause."""
    cause = getattr(error, "cause", None)
    if not isinstance(cause, Cause) or Outcome.ABSTAIN not in cause.outcomes:
        return None  # a failure is not a judgement: a cause that blames authors would reject
    # Combinators skip NOT_APPLICABLE, so a failing member would silently drop out.
    return None if cause is Cause.NOT_APPLICABLE else cause


def engine_wide(error: Exception) -> bool:
    """Whether an error affected a whole service, so that no part of a batch would fare better."""
    if isinstance(error, _HungError | _CircuitOpenError):
        return True
    declared = getattr(error, "engine_wide", None)
    return declared if isinstance(declared, bool) else cause_of(error) in ENGINE_WIDE


class _Worker:
    """A thread that calls verifiers one after another and can be abandoned during a call."""

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[tuple[object, Exception | None]] = queue.SimpleQueue()
        # Key of the call the worker was abandoned in; guarded by `_hung_lock`, like the counts.
        self.left_in: tuple[int, bool] | None = None
        threading.Thread(target=self._work, daemon=True, name="grpo-guard").start()

    def _work(self) -> None:
        while (call := self.calls.get()) is not None:
            error: Exception | None = None
            result: object = None
            try:
                result = call()
            except Exception as raised:
                error = raised
            except BaseException as raised:  # SystemExit, or a panic in an extension
                error = RuntimeError(f"{type(raised).__name__}: {raised!s:.200}")
            with _hung_lock:
                self.answers.put((result, error))
                if self.left_in is not None:
                    _hung[self.left_in] -= 1
                    return
            del call, result, error  # a model must not outlive its guard in a waiting thread


# Idle workers, the most recently used on top: starting a thread costs more than a quick verifier.
# After a burst of calls, only a few workers are kept.
MOST_IDLE = 4
_idle: list[_Worker] = []
# A forked child process has neither the idle threads nor those that hang.
os.register_at_fork(after_in_child=_idle.clear)
os.register_at_fork(after_in_child=_hung.clear)


def _call_limited(
    verifier: Runnable, ask: Callable[[], object], deadline: float | None, jointly: bool = False
) -> object:
    """Call the verifier, in a thread that can be abandoned if there is a deadline."""
    if deadline is None:
        return ask()
    if time.monotonic() >= deadline:
        raise _HungError
    called = id(verifier), jointly
    if _hung.get(called, 0) >= MAX_HUNG_CALLS:
        raise _CircuitOpenError(f"{MAX_HUNG_CALLS} earlier calls have not returned yet")
    try:
        worker = _idle.pop()
    except IndexError:
        worker = _Worker()
    worker.calls.put(partial(contextvars.copy_context().run, ask))
    try:
        result, error = worker.answers.get(timeout=max(0.0, deadline - time.monotonic()))
    except queue.Empty:
        with _hung_lock:
            if worker.answers.empty():
                worker.left_in = called
                _hung[called] = _hung.get(called, 0) + 1
                raise _HungError from None
            result, error = worker.answers.get()
    except BaseException:  # an interrupt: the thread ends after this call
        worker.calls.put(None)
        raise
    if len(_idle) < MOST_IDLE:
        _idle.append(worker)
    else:
        worker.calls.put(None)
    if error is not None:
        raise error
    return result
