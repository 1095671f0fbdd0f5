"""Connections: how long they can stay idle, and what happens to a client that stops sending."""

import asyncio
import contextlib
import json
import socket
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

# Seconds for a request's head to arrive, and for a reply to be fetched.
PATIENCE = 20.0
# Bytes to read from one connection in one go. The lines of a head, and one-byte chunks, are all
# parsed before any other task runs.
HEAD_BYTES = 4 * 1024
BODY_BYTES = 64 * 1024
# A body that trickles in is passed on in chunks of this many bytes: thousands of senders may
# trickle, and each chunk wakes a task.
DROPS = 4 * 1024
# Bytes of a stream that the kernel may buffer before the client has read them. By default the
# kernel buffers megabytes, so that all completions would be judged even for a client that reads
# none of the answer.
STREAM_BYTES = 64 * 1024
CONNECTION = "connection"
"""The key of the `Connection` in a request's state."""
# Seconds after the client's last byte at which we probe whether it is still listening.
PROBES = (0.0, 0.1, 1.0)


class Connection(H11Protocol):
    """An HTTP/1.1 connection of uvicorn that is closed when the client takes too long.

    A client that has sent its request may close its side and still be listening. A client that has
    gone looks the same until something is sent, so the server sends ``100 Continue``, which clients
    skip.
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
        """From now on, buffer no more of a reply than the client has room for."""
        socket_of = self.transport.get_extra_info("socket")
        with contextlib.suppress(OSError, AttributeError):
            socket_of.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, STREAM_BYTES)
        self.transport.set_write_buffer_limits(high=0)

    def cut(self) -> None:
        """Drop the client and everything it has not read, so that it cannot mistake the reply for a
        complete one."""
        if self.cycle is not None:
            self.cycle.disconnected = True  # so that ending without an answer is not an error
        self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Refuse input that is not HTTP, in the same form as all other refusals."""
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
        """Handle the end of the client's input; return True to leave the connection open for the
        reply."""
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
        """Return how many bytes of a body of declared length have yet to arrive. Reads a private
        attribute; if a release of h11 renames it, bodies are read in smaller chunks."""
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
        """When it is the client's turn, give it `PATIENCE` to send its request or fetch a reply."""
        if self._answering() and not self.flow.write_paused:
            self._stop_watching()
        elif self._closing is None:
            self._closing = self.loop.call_later(PATIENCE, self.transport.abort)

    def _stop_watching(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None
