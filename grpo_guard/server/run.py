"""Listening until told to stop."""

from __future__ import annotations

import logging

import uvicorn
from fastapi import FastAPI

# Seconds that requests under way have to finish; what stops services waits 30 and then kills.
GRACE = 25


def listen(app: FastAPI, host: str, port: int) -> bool:
    """Serve until SIGTERM or SIGINT, then finish what is under way. False: could not listen."""
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        # A line per completion is no log; headers of proxies are claims.
        access_log=False,
        proxy_headers=False,
        server_header=False,
        # Bounds the size of headers, which its alternative does not.
        http="h11",
        ws="none",
        timeout_graceful_shutdown=GRACE,
        log_level=logging.INFO,
    )
    server = uvicorn.Server(config)
    try:
        server.run()
    except KeyboardInterrupt:
        return True
    except SystemExit:
        return False
    return server.started
