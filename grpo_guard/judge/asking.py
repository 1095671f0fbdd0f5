"""Ask a backend questions, with bounds on concurrency, retries, time and money."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import tenacity

from grpo_guard.core.quoting import one_line
from grpo_guard.core.verdict import Cause
from grpo_guard.judge.backends.base import Backend, Reply, Request
from grpo_guard.judge.errors import (
    BackendError,
    ContextTooLongError,
    DeclinedError,
    JudgeSetupError,
    as_backend_error,
    may_be_one_of_many,
)
from grpo_guard.judge.limits import CircuitBreaker, Limits, Spending

# HTTP statuses with which servers, content filters and firewalls refuse a request because of its
# content, some by a redirect to a page of their own; a wrong setup can cause them too.
ABOUT_ONE_REQUEST = frozenset({*range(300, 400), 400, 403, 405, 406, 413, 415, 422, 451})
NEUTRAL_TIMEOUT = 10.0  # seconds
PIECES = 8  # of a failed batch: three rounds split 512 requests into single ones
_BACKOFF: Final = tenacity.wait_exponential(0.5, max=20) + tenacity.wait_random(0, 0.5)
# Returned if the deadline leaves no time for the neutral question.
_NO_TIME: Final = BackendError("no time for the neutral question", cause=Cause.TIMEOUT)


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of one question."""

    reply: Reply | BackendError  # the model's answer, or why there is none
    requests: int  # how many requests were made
    seconds: float  # from the first request to the answer, including waits between requests


class Asker:
    """Asks one backend from one event loop, within limits on time, attempts and money."""

    def __init__(self, backend: Backend, limits: Limits) -> None:
        self._backend = backend
        self._limits = limits
        self._slots = asyncio.Semaphore(limits.concurrency or backend.concurrency)
        self._breaker = CircuitBreaker()
        self._spending = Spending(limits)
        self._broken: JudgeSetupError | None = None
        self._first_failure = ""  # since the provider last answered
        self._neutral: Request | None = None
        self._neutral_lock = asyncio.Lock()
        self._neutral_outcome: tuple[float, BackendError | None] | None = None

    def begin(self, neutral: Request) -> None:
        """Start a new batch: a wrong setup may have been fixed since the last one.

        ``neutral`` is a question without any untrusted text. Whether the provider answers it tells
        an outage apart from a completion that the provider cannot process.
        """
        self._broken = None
        self._neutral = neutral

    async def ask(
        self,
        requests: Sequence[Request],
        *,
        deadline: float,
        attempts: int,
        size: int | None = None,
    ) -> list[Answer]:
        """Return one answer per request, in order; never raises.

        No request is made after ``deadline`` (on the monotonic clock) or more than ``attempts``
        times (>= 1). At most ``size`` are made together; None for as many as the backend takes.
        """
        size = size or max(1, self._backend.batch_size)
        parts = [requests[i : i + size] for i in range(0, len(requests), size)]
        answers = await asyncio.gather(*(self._ask_part(p, deadline, attempts) for p in parts))
        return [answer for part in answers for answer in part]

    async def _ask_part(
        self, part: Sequence[Request], deadline: float, attempts: int
    ) -> list[Answer]:
        made, started = 0, time.monotonic()
        last: BackendError | None = None

        async def attempt() -> list[Reply]:
            nonlocal made, started, last
            async with self._slots:
                left = self._seconds_left(deadline)
                if made == 0:
                    started = time.monotonic()  # do not count time in the queue
                made += 1
                try:
                    return await self._ask_once(part, left, deadline)
                except BackendError as error:
                    last = error
                    raise

        replies: Sequence[Reply | BackendError]
        try:
            replies = await self._retrying(deadline, attempts)(attempt)
        except BackendError as error:
            # If no retry was made in time, report the original failure rather than the deadline.
            failure = last or error
            if len(part) > 1 and made < attempts and may_be_one_of_many(failure):
                # Split up, so that one text the engine fails on does not affect the others.
                size = -(-len(part) // PIECES)
                left = attempts - made
                rest = await self.ask(part, deadline=deadline, attempts=left, size=size)
                spent = (time.monotonic() - started) / len(part)
                return [Answer(a.reply, a.requests + made, spent) for a in rest]
            replies = [failure] * len(part)
        seconds = (time.monotonic() - started) / len(part) if made else 0.0
        return [Answer(reply, made, seconds) for reply in replies]

    def _seconds_left(self, deadline: float) -> float:
        """Return the time limit for a request, in seconds; raises if no request may be made."""
        if self._broken is not None:
            raise self._broken  # a wrong key stays wrong: do not try it again
        exhausted = self._spending.exhausted()
        if exhausted is not None:
            raise BackendError(exhausted, cause=Cause.BUDGET, retry=False)
        left = deadline - time.monotonic()
        if left <= 0:
            raise BackendError(
                f"no answer within {self._limits.deadline:g} s", cause=Cause.TIMEOUT, retry=False
            )
        if not self._breaker.allows():
            why = f", first with: {self._first_failure}" if self._first_failure else ""
            message = f"not asked again for a while: the provider failed repeatedly{why}"
            raise BackendError(message, cause=Cause.CIRCUIT_OPEN, retry=False)
        # The per-request limit is too short for a batch of hundreds in a local engine.
        return left if self._backend.batch_size > 1 else min(left, self._limits.request_timeout)

    async def _ask_once(
        self, part: Sequence[Request], seconds: float, deadline: float
    ) -> list[Reply]:
        try:
            # Needed even if the backend has its own time-outs: a server that sends one byte per
            # second never triggers those.
            async with asyncio.timeout(seconds):
                replies = await self._backend.ask(part, timeout=seconds)
            if len(replies) != len(part):
                raise BackendError(f"expected {len(part)} replies, got {len(replies)}")
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:  # a panic in an extension is not an Exception
            failure = as_backend_error(error, seconds)
            if failure.cause is Cause.TIMEOUT:
                for request in part:
                    self._spending.add(request, None)
            raise await self._charged(failure, deadline) from error
        self._answered()
        for request, reply in zip(part, replies, strict=True):
            self._spending.add(request, reply)
        return replies

    async def _charged(self, failure: BackendError, deadline: float) -> BackendError:
        """Find out whether a failure is due to this request or to the provider, and record it.

        Otherwise one node could switch the judge off for everyone by sending texts that the
        provider refuses or fails on.
        """
        failed_at = time.monotonic()
        if isinstance(failure, JudgeSetupError):
            if failure.status in ABOUT_ONE_REQUEST:
                problem = await self._problem_since(failed_at, deadline)
                if problem is None:
                    return DeclinedError(str(failure), retry=False, status=failure.status)
                if not isinstance(problem, JudgeSetupError):
                    return failure  # cannot be decided
            self._broken = failure
        elif isinstance(failure, ContextTooLongError) or failure.cause is Cause.RATE_LIMITED:
            pass  # a provider that answers "too many" or "too long" is up
        elif not self._breaker.next_opens:
            self._failed(failure)
        elif (problem := await self._problem_since(failed_at, deadline)) is None:
            self._answered()
        elif problem is not _NO_TIME:
            self._failed(failure)
        return failure

    def _answered(self) -> None:
        self._breaker.succeeded()
        self._first_failure = ""

    def _failed(self, failure: BackendError) -> None:
        self._breaker.failed()
        self._first_failure = self._first_failure or one_line(str(failure), 200)

    async def _problem_since(self, moment: float, deadline: float) -> BackendError | None:
        """Return why the provider does not answer the neutral question, or None if it does.

        An answer from before ``moment`` does not count: an outage may have begun since, and honest
        work would be rejected. Returns `_NO_TIME` if the deadline comes first.
        """
        if self._neutral is None:
            return BackendError("there is no neutral question")
        try:
            async with asyncio.timeout(deadline - time.monotonic()), self._neutral_lock:
                if self._neutral_outcome is None or self._neutral_outcome[0] < moment:
                    self._neutral_outcome = (
                        time.monotonic(),
                        await self._ask_neutral(self._neutral),
                    )
                return self._neutral_outcome[1]
        except TimeoutError:
            return _NO_TIME

    async def _ask_neutral(self, neutral: Request) -> BackendError | None:
        reply, problem = None, None
        seconds = min(NEUTRAL_TIMEOUT, self._limits.request_timeout)
        try:
            async with asyncio.timeout(seconds):
                (reply,) = await self._backend.ask([neutral], timeout=seconds)
        except Exception as error:
            problem = as_backend_error(error, seconds)
        finally:  # also at the deadline: a cancelled request can cost as much as an answer
            self._spending.add(neutral, reply)
        return problem

    def _retrying(self, deadline: float, attempts: int) -> tenacity.AsyncRetrying:
        return tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(lambda e: isinstance(e, BackendError) and e.retry),
            stop=tenacity.stop_after_attempt(attempts)
            | tenacity.stop_before_delay(max(0.0, deadline - time.monotonic())),
            wait=_pause,
            reraise=True,
        )


def _pause(state: tenacity.RetryCallState) -> float:
    """Seconds to wait before a retry: the provider's Retry-After, or else exponential backoff."""
    error = state.outcome.exception() if state.outcome is not None else None
    wait = getattr(error, "retry_after", None)
    return float(wait) if wait is not None else _BACKOFF(state)
