"""Connections: how long one may be idle, and what becomes of a client that stops sending."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

# Seconds for a request's head to arrive, and for a reply to be fetched.
PATIENCE = 20.0
# Read at once from one connection. Lines of a head and chunks of a byte are taken apart before
# anybody else gets to act.
HEAD_BYTES = 4 * 1024
BODY_BYTES = 64 * 1024
# A body that comes in drops is handed on in pieces of so many bytes: thousands of senders may drip,
# and each piece wakes a task.
DROPS = 4 * 1024
# Of a stream, what the kernel takes before the client has read it. Left to itself it takes
# megabytes, and all completions would be judged for somebody who reads none of the answer.
STREAM_BYTES = 64 * 1024
CONNECTION = "connection"
"""Under which a request's state has its `Connection`."""
# Seconds after the client's last byte.
PROBES = (0.0, 0.1, 1.0)


class Connection(H11Protocol):
    """Of HTTP/1.1, as uvicorn has it, but with an end to its patience.

    A client that has sent its request may close its side and still listen. One that has gone looks
    the same until something is sent to it: so ``100 Continue`` is, which clients must skip.
    """

    _closing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, CONNECTION: self}
        self._drops = bytearray()
        self._read_at_once(HEAD_BYTES)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_watching()

    def data_received(self, data: bytes) -> None:
        self._drops += data
        coming = self._answering() and self.cycle.more_body
        if coming and len(self._drops) < min(self._due(), DROPS):
            return
        data, self._drops = bytes(self._drops), bytearray()
        super().data_received(data)
        self._read_at_once(BODY_BYTES if self._answering() and self._due() else HEAD_BYTES)
        self._watch()

    def hold_little(self) -> None:
        """From now on, take no more of a reply than the client has room for."""
        socket_of = self.transport.get_extra_info("socket")
        with contextlib.suppress(OSError, AttributeError):
            socket_of.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, STREAM_BYTES)
        self.transport.set_write_buffer_limits(high=0)

    def cut(self) -> None:
        """Forget the client, and what it has not read; nobody takes the reply for whole."""
        if self.cycle is not None:
            self.cycle.disconnected = True  # so that its end without an answer is no error
        self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Of what is no HTTP, in the form of all other refusals."""
        headers = [("Content-Type", "application/json"), ("Connection", "close")]
        sent = (
            h11.Response(status_code=400, headers=headers, reason="Bad Request"),
            h11.Data(data=json.dumps({"error": msg}).encode("ascii")),
            h11.EndOfMessage(),
        )
        for event in sent:
            self.transport.write(self.conn.send(event))
        self.transport.close()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def eof_received(self) -> Any:
        """True leaves the connection open for the reply."""
        if not self._answering() or self.cycle.more_body:
            return None
        self.cycle.keep_alive = False
        for seconds in PROBES:
            self.loop.call_later(seconds, self._probe, self.cycle)
        return True

    def _probe(self, cycle: Any) -> None:
        if cycle.disconnected or cycle.response_started or self.transport.is_closing():
            return
        if self.conn.their_http_version != b"1.0":
            going_on = h11.InformationalResponse(status_code=100, headers=[], reason="Continue")
            self.transport.write(self.conn.send(going_on))

    def _due(self) -> int:
        """Of a body that says how long it is, what has not arrived. Private; where a release of h11
        calls it otherwise, bodies are read in smaller pieces."""
        return getattr(self.conn._reader, "_remaining", 0)

    def _read_at_once(self, most: int) -> None:
        with contextlib.suppress(AttributeError):  # not every loop's transport has it
            self.transport.max_size = most  # type: ignore[attr-defined]

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._watch()

    def _watch(self) -> None:
        """Where it is the client's turn, it has so long to ask, or to fetch its reply."""
        if self._answering() and not self.flow.write_paused:
            self._stop_watching()
        elif self._closing is None:
            self._closing = self.loop.call_later(PATIENCE, self.transport.abort)

    def _stop_watching(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None
