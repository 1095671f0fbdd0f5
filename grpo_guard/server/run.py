"""Listen until a signal stops the server."""

import contextlib
import copy
import logging
import resource
import sys
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp

from grpo_guard.core.quoting import LOG_LINE, LOG_TIME, PrintableFormatter
from grpo_guard.server.connection import Connection

# Seconds that requests in progress have to finish; service managers wait 30 and then kill.
GRACE = 25
# Each waiting request holds a connection, and a process can often open only 1,024 files.
OPEN_FILES = 131_072
# A small request passes from thread to thread, and at each step it waits this long while another
# thread works on a large one. Python's default of 5 ms would make it ten times slower.
SWITCH_SECONDS = 0.0005
# Maximum size of a request's head in bytes: all clients wait while its lines are parsed.
HEAD_BYTES = 16 * 1024


def listen(app: ASGIApp, host: str, port: int) -> bool:
    """Serve until SIGTERM or SIGINT, then finish requests in progress. Returns False if the server
    could not listen."""
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
    """Like `listen`, in several processes, which are replaced if they end; ``app`` names the
    function that makes each application. Returns False if the server could not listen, or no worker
    could start."""
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
    """Build a server that is not running yet."""
    return uvicorn.Server(uvicorn.Config(app, host=host, port=port, **_OPTIONS))


# Uvicorn calls its logger "uvicorn.error", whatever the level.
_LOGGED: Final[dict[str, Any]] = copy.deepcopy(uvicorn.config.LOGGING_CONFIG)
_LOGGED["formatters"]["default"] = {
    "()": PrintableFormatter,
    "fmt": LOG_LINE.format("uvicorn"),
    "datefmt": LOG_TIME,
}
_OPTIONS: Final[dict[str, Any]] = {
    # A line per request would flood the log; proxy headers are mere claims.
    "access_log": False,
    "proxy_headers": False,
    "server_header": False,
    "http": Connection,
    "h11_max_incomplete_event_size": HEAD_BYTES,
    "ws": "none",
    "timeout_graceful_shutdown": GRACE,
    "log_level": logging.INFO,
    "log_config": _LOGGED,
}


def prepare() -> None:
    """Set process-wide limits; each process that serves calls this. As many connections are allowed
    as the operator's hard limit permits."""
    sys.setswitchinterval(SWITCH_SECONDS)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
