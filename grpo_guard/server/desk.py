"""One request: its body comes in, waits for its batch, and is answered."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Sized
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from grpo_guard.completion import Completion
from grpo_guard.server.access import check_access
from grpo_guard.server.batches import Batches, Job
from grpo_guard.server.connection import CONNECTION
from grpo_guard.server.intake import Intake, Sender, too_large
from grpo_guard.server.late import while_it_waits
from grpo_guard.server.limits import PARSED_AT_ONCE, Limits
from grpo_guard.server.metrics import CONTENT_TYPE, Metrics
from grpo_guard.server.problems import RequestError
from grpo_guard.server.readers import Readers
from grpo_guard.server.recent import Recent
from grpo_guard.server.replies import Told, refused, reply
from grpo_guard.server.stream import send_lines
from grpo_guard.server.verdicts import Verdicts
from grpo_guard.verifier import CompletionVerifier

logger = logging.getLogger("grpo_guard")
Asked = TypeVar("Asked", bound=Sized)
Given = TypeVar("Given", bound=Sized, contravariant=True)

# Of a body that is refused: how much of it, and for how long, is let in before the reply.
DISCARD_TIMES = 8
DISCARD_SECONDS = 5.0


class Answerer(Protocol[Given]):
    """What a service asks of the guard."""

    def job(self, asked: Given, request_id: str, size: int) -> Job[Told]:
        """The work on one request, whose body has ``size`` bytes."""

    def too_late(self, asked: Given) -> Told:
        """The answer where that took too long.

        Raises:
            RequestError: there is none.
        """


@dataclass(frozen=True, slots=True)
class Service(Generic[Asked]):
    """One way of asking the guard.

    Args:
        path: Under which.
        parse: From a body and the bounds that it must keep. Raises RequestError.
        answerer: What is done then.
    """

    path: str
    parse: Callable[[bytes, Limits], Asked]
    answerer: Answerer[Asked]


class Desk:
    """What the requests of one server share: room for bodies, batches, and one parser."""

    def __init__(
        self, verifier: CompletionVerifier, limits: Limits, token: str | None, metrics: Metrics
    ) -> None:
        self._limits, self._token = limits, token
        self._intake = Intake(limits)
        self._batches = Batches(verifier, limits)
        # One at a time: it takes several times the body's memory, and keeps the interpreter to
        # itself, so that all else stands still meanwhile.
        self._parser = asyncio.Lock()
        # Of streams: a body with many completions takes longest, and others do not wait for it.
        self._stream_parser = asyncio.Lock()
        self._readers = Readers(limits)
        self._metrics = metrics
        self._recent = Recent()

    async def respond(self, service: Service[Any], request: Request) -> Response:
        """The reply to a request."""

        async def answer(sender: Sender, deadline: float) -> Response:
            told, request_id = await self._told(request, service, sender.body, deadline)
            self._metrics.told(service.path, told.outcomes)
            headers = {"X-Request-Id": request_id}
            return Response(told.text, headers=headers, media_type="application/json")

        return await self._counted(request, service.path, answer)

    async def stream(
        self, service: Service[list[Completion]], answerer: Verdicts, request: Request
    ) -> Response:
        """The reply to a request line by line, sent already; or its refusal."""

        async def answer(sender: Sender, deadline: float) -> Response:
            client = request.client.host if request.client else ""
            with self._readers.place(sender, client):
                asked = await self._parsed(service, sender.body, self._stream_parser)
                self._batches.require_room(large=True)
                return await self._streamed(request, service.path, answerer, sender, asked)

        return await self._counted(request, service.path, answer)

    async def _streamed(
        self,
        request: Request,
        path: str,
        answerer: Verdicts,
        sender: Sender,
        asked: list[Completion],
    ) -> Response:
        connection = request.scope.get("state", {}).get(CONNECTION)
        if connection is not None:
            connection.hold_little()
        request_id, size = secrets.token_hex(8), len(sender.body)
        jobs: list[Job[Told]] = []
        gone = asyncio.Event()

        async def judge(part: list[Completion], first: int) -> Told:
            if gone.is_set():
                raise ClientDisconnect
            jobs[:] = [answerer.job(part, request_id, size * len(part) // len(asked), first)]
            until = asyncio.get_running_loop().time() + self._limits.seconds
            try:
                return await self._batches.answer(jobs[0], until, patient=True)
            except (TimeoutError, RequestError):
                jobs[0].leave()
                return answerer.too_late(part, first)
            except ClientDisconnect:
                raise
            except Exception as error:
                logger.error("%s failed", path, exc_info=error)
                return answerer.failed(part, first)

        def leave() -> None:
            gone.set()
            for job in jobs:
                job.leave()

        try:
            async with while_it_waits(request, leave):
                fetching = partial(self._intake.fetching, sender)
                lines = send_lines(request._send, request_id, asked, judge, self._limits, fetching)
                async for told in lines:
                    self._metrics.told(path, told.outcomes)
        except ClientDisconnect:
            left = "did not read" if sender.dropped else "left"
            logger.info("%s: the client %s: its stream ends early", path, left)
            if connection is not None:
                connection.cut()
            # Without one, the server closes what was begun and not ended. Either way nobody takes
            # it for whole.
            return Sent(status_code=400)
        return Sent()

    async def metrics(self, request: Request) -> Response:
        """All counts."""
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
    ) -> Response:
        clock = asyncio.get_running_loop().time
        started = clock()
        with self._metrics.request():
            response = await self._respond(request, answer, started + self._limits.seconds)
        self._metrics.answered(path, response.status_code, clock() - started)
        return response

    async def _respond(
        self,
        request: Request,
        answer: Callable[[Sender, float], Awaitable[Response]],
        deadline: float,
    ) -> Response:
        try:
            check_access(request.headers, self._token)
            _check_form(request, self._limits)
            # The body comes before the turn, which a sender who takes his time would hold.
            async with self._intake.body(request, deadline) as sender:
                return await answer(sender, deadline)
        except RequestError as error:
            if error.status in (413, 429, 503):
                await _discard(request, self._limits)
            return refused(error)
        except ClientDisconnect:
            logger.info("%s: the client left before its answer", request.url.path)
            return Response(status_code=400)  # to nobody
        except Exception as error:
            # The reward function's, or a defect here. The reply names the class alone: the message
            # may tell a stranger of the server's files.
            logger.error("%s failed", request.url.path, exc_info=error)
            return reply({"error": f"{type(error).__name__}; the server's log says more"}, 500)

    async def _told(
        self, request: Request, service: Service[Any], body: bytes, deadline: float
    ) -> tuple[Told, str]:
        asked = await self._parsed(service, body, self._parser)
        request_id = secrets.token_hex(8)

        async def ask() -> tuple[Told, bool]:
            job = service.answerer.job(asked, request_id, len(body))
            async with while_it_waits(request, job.leave):
                try:
                    told = await self._batches.answer(job, deadline)
                    return told, not job.given_up.is_set()
                except TimeoutError:
                    job.leave()
                    logger.warning("%s: no answer within %g s", service.path, self._limits.seconds)
                    # In a thread: a guard that only watches asks the reward function there.
                    return await asyncio.to_thread(service.answerer.too_late, asked), False

        if key := request.headers.get("idempotency-key"):
            return await self._recent.told(key, service.path, body, ask), request_id
        return (await ask())[0], request_id

    async def _parsed(self, service: Service[Asked], body: bytes, parser: asyncio.Lock) -> Asked:
        if len(body) <= PARSED_AT_ONCE:
            return service.parse(body, self._limits)
        async with parser:
            return await asyncio.to_thread(service.parse, body, self._limits)


class Sent(Response):
    """A reply that is on its way already."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pass


def _check_form(request: Request, limits: Limits) -> None:
    """Refuse before the body is read what says how large it is, and what does not."""
    # Its size would not be known before it is unpacked.
    if request.headers.get("content-encoding", "identity") != "identity":
        raise RequestError(415, "(body): expected no Content-Encoding")
    # A chunk of one byte takes six, and as much of the loop's time as a whole body.
    if "transfer-encoding" in request.headers:
        raise RequestError(411, "(body): expected a Content-Length, got Transfer-Encoding")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and (len(declared) > 18 or int(declared) > limits.body_bytes):
        raise too_large(limits)


async def _discard(request: Request, limits: Limits) -> None:
    """Let some of a refused body come in, and forget it: most clients send it all before they read
    the reply, and would see a broken connection instead. No turn is held meanwhile."""
    left = DISCARD_TIMES * limits.body_bytes
    # RuntimeError: the body was read already.
    with suppress(TimeoutError, ClientDisconnect, RuntimeError):
        async with asyncio.timeout(DISCARD_SECONDS):
            async for chunk in request.stream():
                left -= len(chunk)
                if left < 0:
                    return
