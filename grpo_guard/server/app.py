"""The web application: its paths, and what each one asks the guard."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from grpo_guard.guard import Guard
from grpo_guard.server.audit import Audit
from grpo_guard.server.bodies import completions_in, queries_in, stream_in
from grpo_guard.server.describe import PAGE_HEADERS, openapi, page
from grpo_guard.server.desk import Desk, Service
from grpo_guard.server.late import given_up
from grpo_guard.server.limits import Limits
from grpo_guard.server.metrics import Metrics
from grpo_guard.server.replies import reply
from grpo_guard.server.rewards import Rewards
from grpo_guard.server.verdicts import Verdicts

Answers = Callable[[Request], Awaitable[Response]]

PATHS = "verdicts: POST /v1/verify; rewards: POST /get_reward; every path: GET /docs"


def create_app(
    guard: Guard,
    *,
    rewards: Rewards | None = None,
    limits: Limits | None = None,
    token: str | None = None,
    audit: Audit | None = None,
    metrics: Metrics | None = None,
) -> Router:
    """Build the application: ``POST /get_reward``, ``/v1/verify``, ``/v1/verify/stream``; ``GET
    /health``, ``/metrics``, ``/docs``.

    Args:
        guard: The guard that judges the completions.
        rewards: What answers ``/get_reward``; if None, `Rewards` without a function.
        limits: Limits on what a request may cost.
        token: Required except for ``/health``, ``/docs`` and ``/openapi.json``; None for none.
        audit: Log of rejections, or None for no log.
        metrics: Where requests are counted; if None, they are counted for this process alone.
    """
    limits = limits or Limits()
    rewards = rewards or Rewards(guard)
    verdicts = Verdicts(guard, f"no answer within {limits.seconds:g} s", audit)
    if guard.identity is not None:
        guard.identity.given_up = given_up  # a client that asks again got no answer
    rewards.audit, rewards.first = audit, verdicts.first
    verify = Service("/v1/verify", completions_in, verdicts)
    stream = Service("/v1/verify/stream", stream_in, verdicts)
    reward = Service("/get_reward", queries_in, rewards)
    counted = metrics or Metrics()
    counted.store_metrics = guard.store_metrics
    desk = Desk(guard, limits, token, counted)

    @asynccontextmanager
    async def lifespan(app: Router) -> AsyncIterator[None]:
        yield
        counted.write()
        if audit is not None:
            audit.close()
        # Close the ledger here: a signal ends the process as soon as the server has stopped.
        close = getattr(guard.ledger, "close", None)
        if close is not None:
            closing = threading.Thread(target=close, daemon=True)
            closing.start()
            await asyncio.to_thread(closing.join, 5.0)  # hung work may hold the ledger's lock

    routes = {
        reward.path: ("POST", lambda request: desk.respond(reward, request)),
        verify.path: ("POST", lambda request: desk.respond(verify, request)),
        stream.path: ("POST", lambda request: desk.stream(stream, verdicts, request)),
        "/metrics": ("GET", desk.metrics),
    } | _described()
    # No middleware wraps these routes: each layer costs a request as much as a quick verifier does.
    # No redirects either: they would echo the Host header sent by a stranger.
    return Router(
        [Route(path, _Endpoint(*how)) for path, how in routes.items()],
        redirect_slashes=False,
        default=_Endpoint(None, _not_found),
        lifespan=lifespan,
    )


class _Endpoint:
    """Answers requests for one path that use one method or, if None, any method."""

    def __init__(self, method: str | None, answers: Answers) -> None:
        self._method, self._answers = method, answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        allowed = ("GET", "HEAD") if self._method == "GET" else (self._method or scope["method"],)
        if scope["method"] in allowed:
            response = await self._answers(Request(scope, receive, send))
        else:
            allow_header = {"Allow": ", ".join(allowed)}
            problem = f"Method Not Allowed: expected {allowed[0]}; {PATHS}"
            response = reply({"error": problem}, 405, allow_header)
        await response(scope, receive, send)


async def _not_found(request: Request) -> Response:
    return reply({"error": f"Not Found; {PATHS}"}, 404)


def _described() -> dict[str, tuple[str, Answers]]:
    """Build the paths that need no token: their replies are the same in every installation and
    reveal nothing."""
    described = openapi()
    html = page(described)

    async def health(request: Request) -> Response:
        return reply({"status": "ok"})

    async def description(request: Request) -> Response:
        return reply(described)

    async def docs(request: Request) -> Response:
        return Response(html, headers=PAGE_HEADERS, media_type="text/html")

    return {
        "/health": ("GET", health),
        "/openapi.json": ("GET", description),
        "/docs": ("GET", docs),
    }
