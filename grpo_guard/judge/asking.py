"""Asking a backend: how many at once, how often again, how long, for how much."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import tenacity
from tenacity.wait import wait_base

from grpo_guard.judge.backends.base import Backend, Reply, Request
from grpo_guard.judge.breaker import CircuitBreaker
from grpo_guard.judge.errors import BackendError, ContextTooLongError, JudgeSetupError
from grpo_guard.judge.limits import Limits, Spending
from grpo_guard.verdict import Cause


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one question.

    Args:
        reply: The model's answer, or why there is none.
        requests: How often it was asked.
        seconds: From the first request to the answer, waiting between them included.
    """

    reply: Reply | BackendError
    requests: int
    seconds: float


class Asker:
    """Asks one backend from one event loop.

    Args:
        backend: Whom to ask.
        limits: Of time, attempts and money.
    """

    def __init__(self, backend: Backend, limits: Limits) -> None:
        self._backend = backend
        self._limits = limits
        self._slots = asyncio.Semaphore(limits.concurrency or backend.concurrency)
        self._breaker = CircuitBreaker()
        self._spending = Spending(limits)
        self._broken: JudgeSetupError | None = None

    def begin(self) -> None:
        """A new batch: what was set up wrongly may have been mended since."""
        self._broken = None

    async def ask(
        self, requests: Sequence[Request], *, deadline: float, attempts: int
    ) -> list[Answer]:
        """One answer per request, in order; never raises.

        Args:
            requests: Any number.
            deadline: By the monotonic clock; nothing is asked after it.
            attempts: For each request, >= 1.
        """
        size = max(1, self._backend.batch_size)
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
                    started = time.monotonic()  # time in the queue is not the model's
                made += 1
                try:
                    return await self._ask_once(part, left)
                except BackendError as error:
                    last = error
                    raise

        replies: Sequence[Reply | BackendError]
        try:
            replies = await self._retrying(deadline, attempts)(attempt)
        except BackendError as error:
            # An answer that failed and was not asked for again is called by how it failed.
            replies = [last or error] * len(part)
        seconds = (time.monotonic() - started) / len(part) if made else 0.0
        return [Answer(reply, made, seconds) for reply in replies]

    def _seconds_left(self, deadline: float) -> float:
        """How long a request may take, if it may be made at all."""
        if self._broken is not None:
            raise self._broken  # a wrong key stays wrong: one request is enough to know
        exhausted = self._spending.exhausted()
        if exhausted is not None:
            raise BackendError(exhausted, cause=Cause.BUDGET, retry=False)
        left = deadline - time.monotonic()
        if left <= 0:
            raise BackendError(
                f"no answer within {self._limits.deadline:g} s", cause=Cause.TIMEOUT, retry=False
            )
        if not self._breaker.allows():
            raise BackendError(
                "the provider failed again and again", cause=Cause.CIRCUIT_OPEN, retry=False
            )
        return min(left, self._limits.request_timeout)

    async def _ask_once(self, part: Sequence[Request], seconds: float) -> list[Reply]:
        try:
            # Also around backends with time-outs of their own: a server that sends a byte a second
            # never runs into those.
            async with asyncio.timeout(seconds):
                replies = await self._backend.ask(part, timeout=seconds)
            if len(replies) != len(part):
                raise BackendError(f"expected {len(part)} replies, got {len(replies)}")
        except Exception as error:
            failure = as_backend_error(error, seconds)
            if isinstance(failure, JudgeSetupError):
                self._broken = failure
            elif not isinstance(failure, ContextTooLongError) and (
                failure.cause is not Cause.RATE_LIMITED
            ):
                self._breaker.failed()  # who says "too many" is up
            raise failure from error
        self._breaker.succeeded()
        for reply in replies:
            self._spending.add(reply)
        return replies

    def _retrying(self, deadline: float, attempts: int) -> tenacity.AsyncRetrying:
        return tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(lambda e: isinstance(e, BackendError) and e.retry),
            stop=tenacity.stop_after_attempt(attempts)
            | tenacity.stop_before_delay(max(0.0, deadline - time.monotonic())),
            wait=_AsToldOr(tenacity.wait_exponential(0.5, max=20) + tenacity.wait_random(0, 0.5)),
            reraise=True,
        )


class _AsToldOr(wait_base):
    """The provider's Retry-After where it gave one, otherwise another strategy."""

    def __init__(self, otherwise: wait_base) -> None:
        self._otherwise = otherwise

    def __call__(self, retry_state: tenacity.RetryCallState) -> float:
        outcome = retry_state.outcome
        error = outcome.exception() if outcome is not None else None
        told = getattr(error, "retry_after", None)
        return float(told) if told is not None else self._otherwise(retry_state)


def as_backend_error(error: Exception, seconds: float) -> BackendError:
    """Any failure of a backend, as one that has a cause.

    All exceptions are caught, since clients raise many: one that is reused across loops raises a
    bare RuntimeError.
    """
    if isinstance(error, BackendError):
        return error
    if isinstance(error, TimeoutError):
        return BackendError(f"no answer within {seconds:.3g} s", cause=Cause.TIMEOUT)
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return BackendError("out of memory", cause=Cause.OUT_OF_MEMORY, retry=False)
    if isinstance(error, ImportError):
        return JudgeSetupError(f"{type(error).__name__}: {error!s:.300}")
    return BackendError(f"{type(error).__name__}: {error!s:.300}", retry=False, cause=Cause.FAULT)
