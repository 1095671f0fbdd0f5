"""The web application: reading, taking a turn, working in a thread, answering."""

from __future__ import annotations

import asyncio
import copy
import logging
import threading
from collections.abc import AsyncIterator, Callable, Sized
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fastapi import FastAPI, Request, Response
from starlette.requests import ClientDisconnect

from grpo_guard.guard import Guard
from grpo_guard.server.access import check_access
from grpo_guard.server.bodies import completions_in, queries_in
from grpo_guard.server.late import awaited_by, until_late, while_it_waits
from grpo_guard.server.limits import Limits
from grpo_guard.server.problems import RequestError
from grpo_guard.server.replies import reply
from grpo_guard.server.rewards import Rewards
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
        parse: From a body and the most completions that it may hold. Raises RequestError.
        answer: The reply; slow.
        too_late: The reply where that took too long.
    """

    parse: Callable[[bytes, int], Asked]
    answer: Callable[[Asked], Any]
    too_late: Callable[[Asked], Any]


def create_app(
    guard: Guard,
    *,
    rewards: Rewards | None = None,
    limits: Limits | None = None,
    token: str | None = None,
) -> FastAPI:
    """``POST /get_reward``, ``POST /v1/verify``, ``GET /health``.

    Args:
        guard: What decides.
        rewards: Answers ``/get_reward``; None = 1 for whatever the guard accepts.
        limits: What a request may cost.
        token: Asked of every request but ``/health``; None = of none.
    """
    limits = limits or Limits()
    rewards = rewards or Rewards(guard)
    late = f"no answer within {limits.seconds:g} s"
    judging = copy.copy(guard)
    judging.ledger = until_late(guard.ledger)
    verify = Service(
        completions_in,
        lambda batch: as_json(judge(judging, batch)),
        lambda batch: as_json(abstentions(guard, len(batch), Cause.TIMEOUT, late)),
    )
    reward = Service(queries_in, rewards.of, lambda given: rewards.abstained(len(given)))
    turns = Turns(limits.running, limits.waiting)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        # Here, since a signal ends the process as soon as the server has stopped.
        close = getattr(guard.ledger, "close", None)
        if close is not None:
            closing = threading.Thread(target=close, daemon=True)
            closing.start()
            await asyncio.to_thread(closing.join, 5.0)  # work that hangs may have the ledger's lock

    # No pages that describe the interface: they load scripts from elsewhere.
    app = FastAPI(title="grpo-guard", openapi_url=None, lifespan=lifespan)

    async def get_reward(request: Request) -> Response:
        return await _respond(request, reward, turns, limits, token)

    async def v1_verify(request: Request) -> Response:
        return await _respond(request, verify, turns, limits, token)

    async def health() -> Response:
        return reply({"status": "ok"})

    app.add_api_route("/get_reward", get_reward, methods=["POST"])
    app.add_api_route("/v1/verify", v1_verify, methods=["POST"])
    app.add_api_route("/health", health, methods=["GET"])
    return app


async def _respond(
    request: Request, service: Service[Any], turns: Turns, limits: Limits, token: str | None
) -> Response:
    deadline = asyncio.get_running_loop().time() + limits.seconds
    try:
        check_access(request.headers, token)
        _refuse_length(request, limits)
        # The turn comes before the body: what waits is held up in its sender's memory, not here.
        async with turns.turn(deadline) as turn:
            asked = await asyncio.to_thread(
                service.parse, await _body(request, limits), limits.completions
            )
            given_up = threading.Event()
            work = awaited_by(given_up, lambda: service.answer(asked))
            try:
                async with while_it_waits(request, given_up):
                    return reply(await turn.run(work, deadline))
            except TimeoutError:
                logger.warning("%s: no answer within %g s", request.url.path, limits.seconds)
                return reply(service.too_late(asked))
    except RequestError as error:
        if error.status in (413, 503):
            await _discard(request, limits)
        headers = {"Retry-After": "1"} if error.retry else {}
        headers |= {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
        # What is left of a refused body is not read.
        headers["Connection"] = "close"
        return reply({"error": error.message, **error.place}, error.status, headers)
    except ClientDisconnect:
        return Response(status_code=400)  # to nobody
    except Exception as error:
        # The reward function's, or a defect here. The reply names the class alone: the message may
        # tell a stranger of the server's files.
        logger.error("%s failed", request.url.path, exc_info=error)
        return reply({"error": f"{type(error).__name__}; the server's log says more"}, 500)


def _refuse_length(request: Request, limits: Limits) -> None:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and (len(declared) > 18 or int(declared) > limits.body_bytes):
        raise _too_large(limits)


async def _body(request: Request, limits: Limits) -> bytes:
    """Read no more than is allowed, whatever the declared length, and for no longer."""
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limits.body_bytes:
                    raise _too_large(limits)
    except TimeoutError:
        raise RequestError(408, f"no whole body within {limits.body_seconds:g} s") from None
    return bytes(body)


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


def _too_large(limits: Limits) -> RequestError:
    return RequestError(413, f"(body): expected at most {limits.body_bytes} bytes, got more")
