"""Listening until told to stop."""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp

from grpo_guard.server.connection import Connection

# Seconds that requests under way have to finish; what stops services waits 30 and then kills.
GRACE = 25
# Requests that wait hold a connection each, and a process may often open 1,024 files.
OPEN_FILES = 131_072
# A small request goes from thread to thread, and waits as long at each step where another thread is
# at work on a large one. Python's own 5 ms would make it ten times slower.
SWITCH_SECONDS = 0.0005
# Each line of a head takes time that everybody waits.
HEAD_BYTES = 16 * 1024


def listen(app: ASGIApp, host: str, port: int) -> bool:
    """Serve until SIGTERM or SIGINT, then finish what is under way. False: could not listen."""
    prepare()
    server = server_of(app, host, port)
    try:
        server.run()
    except KeyboardInterrupt:
        return True
    except SystemExit:
        return False
    return server.started


def listen_in_workers(app: str, host: str, port: int, workers: int) -> bool:
    """`listen` in several processes, in each of which ``app`` names what makes the application.

    One that ends is replaced. False: could not listen, or no worker could begin.
    """
    prepare()
    try:
        # A worker whose interpreter is busy for a while is not dead.
        uvicorn.run(
            app, host=host, port=port, workers=workers, factory=True,
            timeout_worker_healthcheck=60, **_OPTIONS,
        )  # fmt: skip
    except SystemExit as ended:
        return not ended.code
    return True


def server_of(app: ASGIApp, host: str, port: int) -> uvicorn.Server:
    """A server that does not run yet."""
    return uvicorn.Server(uvicorn.Config(app, host=host, port=port, **_OPTIONS))


_OPTIONS: Final[dict[str, Any]] = {
    # A line per completion is no log; headers of proxies are claims.
    "access_log": False,
    "proxy_headers": False,
    "server_header": False,
    "http": Connection,
    "h11_max_incomplete_event_size": HEAD_BYTES,
    "ws": "none",
    "timeout_graceful_shutdown": GRACE,
    "log_level": logging.INFO,
}


def prepare() -> None:
    """Set what holds for the whole process: in each that serves."""
    sys.setswitchinterval(SWITCH_SECONDS)
    _allow_connections()


def _allow_connections() -> None:
    """As many as the operator's hard limit lets a process have."""
    try:
        import resource
    except ImportError:  # not on Windows, where there is no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
