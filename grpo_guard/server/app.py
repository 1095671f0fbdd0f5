"""The web application: reading a body, taking a turn, working in a thread, answering."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import math
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sized
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from grpo_guard.guard import Guard
from grpo_guard.server.access import check_access
from grpo_guard.server.bodies import completions_in, queries_in
from grpo_guard.server.describe import PAGE_HEADERS, openapi, page
from grpo_guard.server.intake import Intake, too_large
from grpo_guard.server.late import awaited_by, given_up, until_late, while_it_waits
from grpo_guard.server.limits import Limits
from grpo_guard.server.metrics import CONTENT_TYPE, Metrics
from grpo_guard.server.problems import RequestError
from grpo_guard.server.rewards import Rewards, outcomes_of
from grpo_guard.server.turns import Turns
from grpo_guard.server.verdicts import abstentions, as_json, judge
from grpo_guard.verdict import Cause

logger = logging.getLogger("grpo_guard")
Asked = TypeVar("Asked", bound=Sized)

# Of a body that is refused: how much of it, and for how long, is let in before the reply.
DISCARD_TIMES = 8
DISCARD_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Service(Generic[Asked]):
    """One way of asking the guard.

    Args:
        path: Under which.
        parse: From a body and the bounds that it must keep. Raises RequestError.
        answer: The reply; slow.
        too_late: The reply where that took too long.
        outcomes: Of a reply, how many completions are accepted, rejected and abstained on.
    """

    path: str
    parse: Callable[[bytes, Limits], Asked]
    answer: Callable[[Asked], Any]
    too_late: Callable[[Asked], Any]
    outcomes: Callable[[Any], Mapping[str, int]]


def create_app(
    guard: Guard,
    *,
    rewards: Rewards | None = None,
    limits: Limits | None = None,
    token: str | None = None,
) -> FastAPI:
    """``POST /get_reward``, ``POST /v1/verify``; ``GET /health``, ``/metrics``, ``/docs``.

    Args:
        guard: What decides.
        rewards: Answers ``/get_reward``; None = 1 for whatever the guard accepts.
        limits: What a request may cost.
        token: Asked of every request but ``/health`` and ``/docs``; None = of none.
    """
    limits = limits or Limits()
    rewards = rewards or Rewards(guard)
    late = f"no answer within {limits.seconds:g} s"
    judging = copy.copy(guard)
    judging.ledger = until_late(guard.ledger)
    if guard.identity is not None:
        guard.identity.given_up = given_up  # whoever asks again has not been answered
    verify = Service(
        "/v1/verify",
        completions_in,
        lambda batch: as_json(judge(judging, batch)),
        lambda batch: as_json(abstentions(guard, len(batch), Cause.TIMEOUT, late)),
        lambda told: Counter(verdict["outcome"] for verdict in told["verdicts"]),
    )
    reward = Service(
        "/get_reward",
        queries_in,
        rewards.of,
        lambda given: rewards.abstained(len(given)),
        outcomes_of,
    )
    desk = Desk(limits, token)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        # Here, since a signal ends the process as soon as the server has stopped.
        close = getattr(guard.ledger, "close", None)
        if close is not None:
            closing = threading.Thread(target=close, daemon=True)
            closing.start()
            await asyncio.to_thread(closing.join, 5.0)  # work that hangs may have the ledger's lock

    # The framework's own description knows none of these routes, and its pages load scripts from
    # elsewhere; see `describe`.
    # A redirect would carry the Host that a stranger sent.
    app = FastAPI(title="grpo-guard", openapi_url=None, lifespan=lifespan, redirect_slashes=False)

    for service in (reward, verify):
        app.add_route(service.path, partial(desk.respond, service), methods=["POST"])
    app.add_route("/metrics", desk.metrics, methods=["GET"])
    _describe(app)
    app.add_exception_handler(HTTPException, _refusal)
    return app


def _describe(app: FastAPI) -> None:
    """What tells a stranger nothing: the same in each installation, and asked without a token."""
    described = openapi()
    html = page(described)

    async def health(request: Request) -> Response:
        return reply({"status": "ok"})

    async def description(request: Request) -> Response:
        return reply(described)

    async def docs(request: Request) -> Response:
        return Response(html, headers=PAGE_HEADERS, media_type="text/html")

    app.add_route("/health", health, methods=["GET"])
    app.add_route("/openapi.json", description, methods=["GET"])
    app.add_route("/docs", docs, methods=["GET"])


async def _refusal(request: Request, error: Exception) -> Response:
    """What the framework refuses itself (404, 405), in the form of all other refusals."""
    assert isinstance(error, HTTPException)
    return reply({"error": str(error.detail)}, error.status_code, dict(error.headers or {}))


class Desk:
    """What the requests of one server share: room for bodies, turns, and one parser."""

    def __init__(self, limits: Limits, token: str | None) -> None:
        self._limits, self._token = limits, token
        self._intake = Intake(limits)
        self._turns = Turns(limits.running, limits.waiting)
        # One at a time: it takes several times the body's memory, and keeps the interpreter to
        # itself, so that all else stands still meanwhile.
        self._parser = asyncio.Lock()
        self._metrics = Metrics()

    async def respond(self, service: Service[Any], request: Request) -> Response:
        clock = asyncio.get_running_loop().time
        started = clock()
        with self._metrics.request():
            response = await self._respond(request, service, started + self._limits.seconds)
        self._metrics.answered(service.path, response.status_code, clock() - started)
        return response

    async def metrics(self, request: Request) -> Response:
        try:
            check_access(request.headers, self._token)
        except RequestError as error:
            return _refused(error)
        return Response(self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def _respond(self, request: Request, service: Service[Any], deadline: float) -> Response:
        try:
            check_access(request.headers, self._token)
            _check_form(request, self._limits)
            # The body comes before the turn, which a sender who takes his time would hold.
            async with self._intake.body(request, deadline) as body:
                return await self._answer(request, service, body, deadline)
        except RequestError as error:
            if error.status in (413, 503):
                await _discard(request, self._limits)
            return _refused(error)
        except ClientDisconnect:
            return Response(status_code=400)  # to nobody
        except Exception as error:
            # The reward function's, or a defect here. The reply names the class alone: the message
            # may tell a stranger of the server's files.
            logger.error("%s failed", request.url.path, exc_info=error)
            return reply({"error": f"{type(error).__name__}; the server's log says more"}, 500)

    async def _answer(
        self, request: Request, service: Service[Any], body: bytes, deadline: float
    ) -> Response:
        left = threading.Event()
        async with while_it_waits(request, left), self._turns.turn(deadline) as turn:
            if left.is_set():
                raise ClientDisconnect
            async with self._parser:
                asked = await asyncio.to_thread(service.parse, body, self._limits)
            work = awaited_by(left, lambda: service.answer(asked))
            try:
                told = await turn.run(work, deadline)
            except TimeoutError:
                left.set()
                logger.warning("%s: no answer within %g s", request.url.path, self._limits.seconds)
                told = service.too_late(asked)
        self._metrics.told(service.path, service.outcomes(told))
        return reply(told)


def _refused(error: RequestError) -> Response:
    headers = {"Retry-After": "1"} if error.retry else {}
    headers |= {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
    # What is left of a refused body is not read.
    headers["Connection"] = "close"
    return reply({"error": error.message, **error.place}, error.status, headers)


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


def reply(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON reply: in ASCII, so that lone surrogates pass, and null for what is no number."""
    try:
        text = json.dumps(content, allow_nan=False)
    except ValueError:
        # NaN is no JSON. One in a verifier's figures would spoil the reply for all completions.
        text = json.dumps(_finite(content), allow_nan=False)
    return Response(text, status, headers, media_type="application/json")


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {name: _finite(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
