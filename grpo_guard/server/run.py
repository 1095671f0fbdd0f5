"""Listening until told to stop."""

from __future__ import annotations

import contextlib
import logging

import uvicorn
from starlette.types import ASGIApp

from grpo_guard.server.connection import Connection

# Seconds that requests under way have to finish; what stops services waits 30 and then kills.
GRACE = 25
# Requests that wait hold a connection each, and a process may often open 1,024 files.
OPEN_FILES = 131_072
# Each line of a head takes time that everybody waits.
HEAD_BYTES = 16 * 1024


def listen(app: ASGIApp, host: str, port: int) -> bool:
    """Serve until SIGTERM or SIGINT, then finish what is under way. False: could not listen."""
    _allow_connections()
    server = server_of(app, host, port)
    try:
        server.run()
    except KeyboardInterrupt:
        return True
    except SystemExit:
        return False
    return server.started


def server_of(app: ASGIApp, host: str, port: int) -> uvicorn.Server:
    """A server that does not run yet."""
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        # A line per completion is no log; headers of proxies are claims.
        access_log=False,
        proxy_headers=False,
        server_header=False,
        http=Connection,
        h11_max_incomplete_event_size=HEAD_BYTES,
        ws="none",
        timeout_graceful_shutdown=GRACE,
        log_level=logging.INFO,
    )
    return uvicorn.Server(config)


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
