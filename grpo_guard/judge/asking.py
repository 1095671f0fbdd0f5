"""Asking a backend: how many at once, how often again, how long, for how much."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import tenacity
from tenacity.wait import wait_base

from grpo_guard.judge.backends.base import Backend, Reply, Request
from grpo_guard.judge.breaker import CircuitBreaker
from grpo_guard.judge.errors import (
    BackendError,
    ContextTooLongError,
    DeclinedError,
    JudgeSetupError,
    as_backend_error,
    may_be_one_of_many,
)
from grpo_guard.judge.limits import Limits, Spending
from grpo_guard.verdict import Cause

# Statuses by which servers, their content filters and the firewalls before them refuse a request
# for what is in it; a wrong set-up gets them too.
# Some answer with a redirect to a page of their own.
ABOUT_ONE_REQUEST = frozenset({*range(300, 400), 400, 403, 405, 406, 413, 415, 422, 451})
# Seconds for the neutral question.
NEUTRAL_TIMEOUT = 10.0
# Into which a batch that failed is split. Three splits of a batch of 512 leave single requests.
PIECES = 8
# The deadline left no time to find out.
_NO_TIME: Final = BackendError("no time for the neutral question", cause=Cause.TIMEOUT)


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
        self._neutral: Request | None = None
        self._trying = asyncio.Lock()
        self._tried: tuple[float, BackendError | None] | None = None

    def begin(self, neutral: Request) -> None:
        """A new batch: what was set up wrongly may have been mended since.

        Args:
            neutral: A question in which no stranger has a say. Whether it is answered tells a
                provider that is down from a completion that it chokes on.
        """
        self._broken = None
        self._neutral = neutral

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
        if len(requests) <= size:
            return await self._ask_part(requests, deadline, attempts) if requests else []
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
                    return await self._ask_once(part, left, deadline)
                except BackendError as error:
                    last = error
                    raise

        replies: Sequence[Reply | BackendError]
        try:
            replies = await self._retrying(deadline, attempts)(attempt)
        except BackendError as error:
            # An answer that failed and was not asked for again is called by how it failed.
            failure = last or error
            if len(part) > 1 and made < attempts and may_be_one_of_many(failure):
                rest = await self._ask_pieces(part, deadline, attempts - made)
                spent = (time.monotonic() - started) / len(part)
                return [Answer(a.reply, a.requests + made, spent) for a in rest]
            replies = [failure] * len(part)
        seconds = (time.monotonic() - started) / len(part) if made else 0.0
        return [Answer(reply, made, seconds) for reply in replies]

    async def _ask_pieces(
        self, part: Sequence[Request], deadline: float, attempts: int
    ) -> list[Answer]:
        """The rest of a batch must not pay for the one text that its engine fails on."""
        size = -(-len(part) // PIECES)
        pieces = [part[i : i + size] for i in range(0, len(part), size)]
        answers = await asyncio.gather(*(self._ask_part(p, deadline, attempts) for p in pieces))
        return [answer for piece in answers for answer in piece]

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
        # The limit of one request says nothing of a batch of hundreds in an engine of our own.
        return left if self._backend.batch_size > 1 else min(left, self._limits.request_timeout)

    async def _ask_once(
        self, part: Sequence[Request], seconds: float, deadline: float
    ) -> list[Reply]:
        try:
            # Also around backends with time-outs of their own: a server that sends a byte a second
            # never runs into those.
            async with asyncio.timeout(seconds):
                replies = await self._backend.ask(part, timeout=seconds)
            if len(replies) != len(part):
                raise BackendError(f"expected {len(part)} replies, got {len(replies)}")
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:  # extensions panic with what is no Exception
            failure = as_backend_error(error, seconds)
            if failure.cause is Cause.TIMEOUT:
                for request in part:
                    self._spending.add(request, None)
            raise await self._charged(failure, deadline) from error
        self._breaker.succeeded()
        for request, reply in zip(part, replies, strict=True):
            self._spending.add(request, reply)
        return replies

    async def _charged(self, failure: BackendError, deadline: float) -> BackendError:
        """A failure, after it is known whether it is this request's alone or the provider's.

        Otherwise one node could switch the judge off for everybody, with texts that the provider
        refuses or fails on.
        """
        failed_at = time.monotonic()
        if isinstance(failure, JudgeSetupError):
            if failure.status in ABOUT_ONE_REQUEST:
                problem = await self._problem_since(failed_at, deadline)
                if problem is None:
                    return DeclinedError(str(failure), status=failure.status)
                if not isinstance(problem, JudgeSetupError):
                    return failure  # cannot be told
            self._broken = failure
        elif isinstance(failure, ContextTooLongError) or failure.cause is Cause.RATE_LIMITED:
            pass  # who says "too many" is up
        elif not self._breaker.next_opens:
            self._breaker.failed()
        elif (problem := await self._problem_since(failed_at, deadline)) is None:
            self._breaker.succeeded()
        elif problem is not _NO_TIME:
            self._breaker.failed()
        return failure

    async def _problem_since(self, moment: float, deadline: float) -> BackendError | None:
        """What keeps the provider from answering a question in which no stranger has a say.

        Asked anew unless it was since then: before, an outage may not have begun, and honest work
        would be rejected for it. `_NO_TIME` where the deadline comes before its answer.
        """
        if self._neutral is None:
            return BackendError("there is no neutral question")
        try:
            async with asyncio.timeout(deadline - time.monotonic()), self._trying:
                if self._tried is None or self._tried[0] < moment:
                    self._tried = (time.monotonic(), await self._ask_neutral(self._neutral))
                return self._tried[1]
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
        finally:  # also when the deadline cut it off: it may cost what an answer does
            self._spending.add(neutral, reply)
        return problem

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
