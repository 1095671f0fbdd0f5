"""Request bodies on their way in, before they take a turn.

A slow sender holds nothing that others need: a body takes no turn until all of it has arrived, it
must keep up a minimum rate, and all bodies together share a fixed number of bytes. When this room
runs out, the slowest senders are asked to retry, and clients that are slow to fetch a stream are
cut off; if bodies already being processed fill the room, the senders wait.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

from starlette.requests import ClientDisconnect, Request

from grpo_guard.server.limits import FLIGHT_BODIES, LARGE_BYTES, Limits
from grpo_guard.server.pace import PIECE, Pace
from grpo_guard.server.replies import RequestError

FETCH_SECONDS = 1.0
"""Seconds to fetch a part of a stream. A slower client keeps its room until others need it."""


class Sender:
    """The sender of a body; ``body`` is set once all of it has arrived."""

    def __init__(self, started: float, clock: asyncio.Timeout) -> None:
        self.started, self.clock = started, clock
        self.body = b""
        self.held = 0
        self.waits: float | None = None  # start of a wait, which does not count against the sender
        self.fetches = self.dropped = False
        self.fetches_since = started

    def rate(self, now: float) -> float:
        if self.fetches:  # dropped before clients still sending, the largest body first
            return -self.held
        return self.held / ((self.waits or now) - self.started + 0.1)


class Intake:
    """Reads request bodies for the tasks on one event loop; large bodies are read at the given
    ``pace``, in between small requests."""

    def __init__(self, limits: Limits, pace: Pace | None = None) -> None:
        self._limits, self._pace = limits, pace or Pace()
        self._room = FLIGHT_BODIES * limits.body_bytes
        self._held = 0  # bytes of all bodies
        self._whole = 0  # bytes of bodies that have arrived
        self._coming: set[Sender] = set()  # and clients that are slow to fetch
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    @asynccontextmanager
    async def body(self, request: Request, deadline: float) -> AsyncIterator[Sender]:
        """Read all of a request's body; its bytes take up room until the context ends. Raises
        ClientDisconnect if the client left, and RequestError: 413 if the body is too large; 408 if
        it arrives too slowly; 503 if there is no room by ``deadline`` on the loop's clock, or
        others needed the room more."""
        started = asyncio.get_running_loop().time()
        sender = Sender(started, asyncio.timeout_at(self._until(started, 0, deadline)))
        self._coming.add(sender)
        try:
            sender.body = await self._read(request, sender, deadline)
            self._coming.discard(sender)
            self._whole += sender.held
            try:
                yield sender
            finally:
                self._whole -= sender.held
        finally:
            self._coming.discard(sender)
            self._held -= sender.held
            self._let_in()

    @asynccontextmanager
    async def fetching(self, sender: Sender, seconds: float) -> AsyncIterator[None]:
        """Give a client ``seconds`` to fetch a part of its answer, while the context is open.
        Raises ClientDisconnect if it takes longer, or is slow while others need its room."""

        sender.fetches_since = asyncio.get_running_loop().time()

        def slow() -> None:
            sender.fetches = True
            self._whole -= sender.held
            self._coming.add(sender)
            self._let_in()

        late = asyncio.get_running_loop().call_later(FETCH_SECONDS, slow)
        try:
            async with asyncio.timeout(seconds) as sender.clock:
                yield
        except TimeoutError:
            sender.dropped = True
            raise ClientDisconnect from None
        finally:
            late.cancel()
            sender.fetches = False
            if sender in self._coming:
                self._coming.discard(sender)
                self._whole += sender.held
        if sender.dropped:
            raise ClientDisconnect

    async def _read(self, request: Request, sender: Sender, deadline: float) -> bytes:
        body = bytearray()
        paid = 0 if is_large(request) else self._limits.body_bytes
        chunks = request.stream()
        try:
            async with sender.clock:
                while True:
                    if len(body) >= paid:
                        paid += PIECE
                        await self._turn(request, sender, deadline)
                    if (chunk := await anext(chunks, None)) is None:
                        break
                    if len(body) + len(chunk) > self._limits.body_bytes:
                        raise too_large(self._limits)
                    if not chunk:
                        continue
                    there = self._held + len(chunk) <= self._room
                    if there and not self._waiting and not sender.dropped:
                        self._held += len(chunk)
                        sender.held += len(chunk)
                    else:
                        await self._waits(sender, deadline, self._take(sender, len(chunk)))
                    sender.clock.reschedule(self._until(sender.started, sender.held, deadline))
                    body += chunk
                return bytes(body)
        except TimeoutError:
            if sender.dropped or sender.waits is not None:
                raise _no_room() from None
            limits = self._limits
            raise RequestError(
                408,
                f"(body): expected all of it within {limits.body_seconds:g} s, and "
                f"{limits.body_rate} bytes a second, got less",
            ) from None

    async def _turn(self, request: Request, sender: Sender, deadline: float) -> None:
        """Wait for the next turn of a large body; a sender that waits holds up nobody else."""
        await self._waits(sender, deadline, self._pace.turn(client_of(request), PIECE))
        sender.clock.reschedule(self._until(sender.started, sender.held, deadline))

    async def _waits(self, sender: Sender, deadline: float, what: Awaitable[None]) -> None:
        """Await something that the sender cannot speed up, without counting the time against it."""
        now = asyncio.get_running_loop().time
        sender.waits = now()
        sender.clock.reschedule(deadline)
        await what
        sender.started += now() - sender.waits
        sender.waits = None

    def _until(self, started: float, received: int, deadline: float) -> float:
        """Return the time at which the sender counts as too slow; the first seconds are free."""
        limits = self._limits
        patience = limits.body_patience + received / limits.body_rate
        return min(started + min(patience, limits.body_seconds), deadline)

    async def _take(self, sender: Sender, size: int) -> None:
        """Wait for room for ``size`` more bytes; requests for room are granted in order."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((granted, size))
        self._let_in()
        try:
            await granted
        except asyncio.CancelledError:
            if not granted.cancelled():
                self._held -= size
            self._let_in()
            raise
        sender.held += size
        if sender.dropped:  # to make room for its own body
            raise _no_room()

    def _let_in(self) -> None:
        while self._waiting:
            granted, size = self._waiting[0]
            if not granted.done():
                if self._held + size > self._room:
                    self._drop_the_slowest(size)
                if self._held + size > self._room:
                    return
                self._held += size
                granted.set_result(None)
            self._waiting.popleft()

    def _drop_the_slowest(self, size: int) -> None:
        """Drop the slowest senders, unless the room is held by bodies that have already arrived."""
        if self._whole + size > self._room:
            return
        now = asyncio.get_running_loop().time()
        # Free slightly more than is needed, because each search looks at all senders.
        enough = self._room - self._room // 8 - size
        for sender in sorted(self._coming, key=lambda sender: sender.rate(now)):
            if self._held <= enough:
                break
            if sender.held:
                sender.dropped = True
                sender.clock.reschedule(now)
                self._coming.discard(sender)
                self._held -= sender.held
                sender.held = 0


def client_of(request: Request) -> str:
    """Return the address that a request comes from; clients behind a proxy share its address."""
    return request.client.host if request.client else ""


def is_large(request: Request) -> bool:
    """Whether a request declares a body so large that small requests should not wait for it."""
    declared = request.headers.get("content-length", "")
    return declared.isdecimal() and (len(declared) > 18 or int(declared) > LARGE_BYTES)


def _no_room() -> RequestError:
    return RequestError(503, "too many bodies are coming in", retry=True)


def too_large(limits: Limits) -> RequestError:
    return RequestError(413, f"(body): expected at most {limits.body_bytes} bytes, got more")
