"""Handle one request: read its body, wait for its batch, answer."""

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from grpo_guard.core.completion import Completion
from grpo_guard.guard import Guard
from grpo_guard.server.access import check_access
from grpo_guard.server.batches import Batches, Job
from grpo_guard.server.bodies import Asked
from grpo_guard.server.connection import CONNECTION
from grpo_guard.server.intake import Intake, Sender, client_of, is_large, too_large
from grpo_guard.server.late import while_it_waits
from grpo_guard.server.limits import LARGE_BYTES, PARSED_AT_ONCE, Limits
from grpo_guard.server.metrics import CONTENT_TYPE, Metrics
from grpo_guard.server.pace import PIECE, Pace
from grpo_guard.server.readers import Readers
from grpo_guard.server.recent import Recent
from grpo_guard.server.replies import ReplyBody, RequestError, refused, reply
from grpo_guard.server.rewards import Rewards
from grpo_guard.server.stream import send_lines
from grpo_guard.server.verdicts import Verdicts

logger = logging.getLogger("grpo_guard")
T = TypeVar("T")

# How much of a refused body is read before the reply, in multiples of the largest allowed body, and
# for how many seconds.
DISCARD_TIMES = 8
DISCARD_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Service:
    """One service of the server: its path, the function that parses a body within the limits
    (raises RequestError), and the object that answers the parsed request."""

    path: str
    parse: Callable[[bytes, Limits], Any]
    answerer: Verdicts | Rewards


class Desk:
    """Handles the requests of one server, which share room for bodies, batches and parsers."""

    def __init__(self, guard: Guard, limits: Limits, token: str | None, metrics: Metrics) -> None:
        self._limits, self._token = limits, token
        self._pace = Pace()
        self._intake = Intake(limits, self._pace)
        self._batches = Batches(guard.verifier, limits, self._pace, guard.reading)
        # One body at a time: parsing takes several times the body's memory, and it holds the
        # interpreter, so that everything else waits.
        self._parser = asyncio.Lock()
        # For large bodies, which take longest and pause in between, so that others need not wait.
        self._large_parser = asyncio.Lock()
        self._readers = Readers(limits)
        self._metrics = metrics
        self._recent = Recent()

    async def respond(self, service: Service, request: Request) -> Response:
        """Answer a request with a single reply."""

        async def answer(sender: Sender, deadline: float) -> Response:
            answered, request_id = await self._answer_to(request, service, sender.body, deadline)
            self._metrics.count_outcomes(service.path, answered.outcomes)
            headers = {"X-Request-Id": request_id}
            return Response(answered.text, headers=headers, media_type="application/json")

        return await self._counted(request, service.path, answer)

    async def stream(self, service: Service, answerer: Verdicts, request: Request) -> Response:
        """Answer a request line by line. The returned response has either been sent already, or
        refuses the request."""
        client = client_of(request)

        async def answer(sender: Sender, deadline: float) -> Response:
            with self._readers.place(sender, client):
                asked = await self._parsed(service, sender.body, client, self._large_parser)
                self._batches.require_room(large=True)
                return await self._streamed(request, service.path, answerer, sender, asked)

        return await self._counted(request, service.path, answer, self._readers.coming(client))

    async def _streamed(
        self, request: Request, path: str, answerer: Verdicts, sender: Sender, asked: Asked
    ) -> Response:
        connection = request.scope.get("state", {}).get(CONNECTION)
        if connection is not None:
            connection.hold_little()
        request_id, size = secrets.token_hex(8), len(sender.body)
        jobs: list[Job[ReplyBody]] = []
        gone = asyncio.Event()

        async def judge(completions: list[Completion], first: int) -> ReplyBody:
            part = asked.part(completions, first)
            if gone.is_set():
                raise ClientDisconnect
            jobs[:] = [answerer.job(part, request_id, size * len(part) // len(asked))]
            until = asyncio.get_running_loop().time() + self._limits.seconds
            try:
                return await self._batches.answer(jobs[0], until, patient=True)
            except (TimeoutError, RequestError):
                jobs[0].leave()
                return answerer.too_late(part)
            except ClientDisconnect:
                raise
            except Exception as error:
                logger.error("%s failed", path, exc_info=error)
                return answerer.failed(part)

        def leave() -> None:
            gone.set()
            for job in jobs:
                job.leave()

        try:
            async with while_it_waits(request, leave):
                fetching = partial(self._intake.fetching, sender)
                lines = send_lines(
                    request._send, request_id, asked.completions, judge, self._limits, fetching
                )
                async for answered in lines:
                    self._metrics.count_outcomes(path, answered.outcomes)
        except ClientDisconnect:
            left = "did not read" if sender.dropped else "left"
            logger.info("%s: the client %s: its stream ends early", path, left)
            if connection is not None:
                connection.cut()
            # Without a `Connection`, the server closes the unfinished reply. Either way the client
            # cannot mistake the reply for complete.
            return Sent(status_code=400)
        return Sent()

    async def metrics(self, request: Request) -> Response:
        """Answer a request for metrics with all counts."""
        try:
            check_access(request.headers, self._token)
        except RequestError as error:
            return refused(error)
        return Response(self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def _counted(
        self,
        request: Request,
        path: str,
        answer: Callable[[Sender, float], Awaitable[Response]],
        place: AbstractContextManager[None] | None = None,
    ) -> Response:
        clock = asyncio.get_running_loop().time
        started = clock()
        with self._metrics.request():
            until = started + self._limits.seconds
            response = await self._respond(request, answer, until, place or nullcontext())
        self._metrics.answered(path, response.status_code, clock() - started)
        return response

    async def _respond(
        self,
        request: Request,
        answer: Callable[[Sender, float], Awaitable[Response]],
        deadline: float,
        place: AbstractContextManager[None],
    ) -> Response:
        try:
            check_access(request.headers, self._token)
            _check_form(request, self._limits)
            async with AsyncExitStack() as stack:
                # Read the body before it takes a turn: a slow sender would hold up that turn.
                with place:
                    body = self._intake.body(request, deadline)
                    sender = await stack.enter_async_context(body)
                return await answer(sender, deadline)
        except RequestError as error:
            if error.status in (413, 429, 503):
                await self._discard(request)
            return refused(error)
        except ClientDisconnect:
            logger.info("%s: the client left before its answer", request.url.path)
            return Response(status_code=400)  # to nobody
        except Exception as error:
            # An error in the reward function, or a bug here. The reply names only the class: the
            # message may reveal the server's files to a stranger.
            logger.error("%s failed", request.url.path, exc_info=error)
            return reply({"error": f"{type(error).__name__}; the server's log says more"}, 500)

    async def _answer_to(
        self, request: Request, service: Service, body: bytes, deadline: float
    ) -> tuple[ReplyBody, str]:
        parser = self._large_parser if len(body) > LARGE_BYTES else self._parser
        asked = await self._parsed(service, body, client_of(request), parser)
        request_id = secrets.token_hex(8)

        async def ask() -> tuple[ReplyBody, bool]:
            job = service.answerer.job(asked, request_id, len(body))
            async with while_it_waits(request, job.leave):
                try:
                    answered = await self._batches.answer(job, deadline)
                    return answered, not job.given_up.is_set()
                except TimeoutError:
                    job.leave()
                    logger.warning("%s: no answer within %g s", service.path, self._limits.seconds)
                    # In a thread: under a guard that only watches, this calls the reward function.
                    return await asyncio.to_thread(service.answerer.too_late, asked), False

        if key := request.headers.get("idempotency-key"):
            return await self._recent.answer(key, service.path, body, ask), request_id
        return (await ask())[0], request_id

    async def _parsed(
        self, service: Service, body: bytes, client: str, parser: asyncio.Lock
    ) -> Any:
        if len(body) <= PARSED_AT_ONCE:
            return service.parse(body, self._limits)
        async with parser:
            if len(body) <= LARGE_BYTES:
                return await asyncio.to_thread(service.parse, body, self._limits)
            await self._pace.turn(client)
            seconds: list[float] = []
            try:
                return await asyncio.to_thread(_timed, seconds, service.parse, body, self._limits)
            finally:
                self._pace.worked(sum(seconds), asyncio.get_running_loop().time())

    async def _discard(self, request: Request) -> None:
        """Read some of a refused body and discard it: most clients send the whole body before they
        read the reply, and would otherwise see a broken connection. No turn is held for this, and
        small requests go first."""
        left = DISCARD_TIMES * self._limits.body_bytes
        paid = left if is_large(request) else 0
        client = client_of(request)
        # RuntimeError: the body has already been read.
        with suppress(TimeoutError, ClientDisconnect, RuntimeError):
            async with asyncio.timeout(DISCARD_SECONDS):
                chunks = request.stream()
                while left >= 0:
                    if left <= paid:
                        paid -= PIECE
                        await self._pace.turn(client, PIECE)
                    if (chunk := await anext(chunks, None)) is None:
                        return
                    left -= len(chunk)


def _timed(seconds: list[float], work: Callable[..., T], *given: Any) -> T:
    """Return what ``work`` returns, and append to ``seconds`` the CPU seconds that the work took in
    this thread."""
    began = time.thread_time()
    try:
        return work(*given)
    finally:
        seconds.append(time.thread_time() - began)


class Sent(Response):
    """A reply that has already been sent."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pass


def _check_form(request: Request, limits: Limits) -> None:
    """Refuse a body that is too large, or whose size is not known, before it is read."""
    # The size of an encoded body is unknown until it is unpacked.
    if request.headers.get("content-encoding", "identity") != "identity":
        raise RequestError(415, "(body): expected no Content-Encoding")
    # A one-byte chunk takes six bytes, and as much of the loop's time as a whole body.
    if "transfer-encoding" in request.headers:
        raise RequestError(411, "(body): expected a Content-Length, got Transfer-Encoding")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and (len(declared) > 18 or int(declared) > limits.body_bytes):
        raise too_large(limits)
