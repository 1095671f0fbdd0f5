"""Streams that clients read: how many are open at once, and which are closed to make room."""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from grpo_guard.server.intake import Sender
from grpo_guard.server.limits import Limits
from grpo_guard.server.replies import RequestError

logger = logging.getLogger("grpo_guard")

SLOW_SECONDS = 3.0
"""Seconds spent on one part after which a stream counts as slow. With a lower value, clients that
come back whenever their streams are closed would keep the server busy reading their bodies."""


class Readers:
    """The open streams of one event loop. Each costs memory for its completions and for one part of
    its answer, so their number is limited. A client that does not read would otherwise keep its
    place for as long as it is allowed to: when a place is needed, the client with the most streams
    loses its slowest stream first."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._open: dict[Sender, str] = {}
        self._coming = Counter[str]()

    @contextmanager
    def coming(self, client: str) -> Iterator[None]:
        """Count a request for a stream while its body arrives. A client (an address) whose streams
        are all open, or on their way, is refused with a RequestError 429 before any of its body is
        read: otherwise it could send megabytes for each refusal, in parallel and repeatedly."""
        own = [other for other, whose in self._open.items() if whose == client]
        # Each stream that a newcomer may close makes room for one newcomer.
        room = self._limits.client_streams - len(own) + len(self._slow(own))
        if self._coming[client] >= room:
            raise RequestError(429, "too many streams of this client are open", retry=True)
        if len(self._open) >= self._limits.streams and not self._slow(list(self._open)):
            raise RequestError(429, "too many streams are open", retry=True)
        self._coming[client] += 1
        try:
            yield
        finally:
            self._coming[client] -= 1
            if not self._coming[client]:
                del self._coming[client]

    @contextmanager
    def place(self, sender: Sender, client: str) -> Iterator[None]:
        """Hold a place for the sender of a request while its stream is open. Raises RequestError
        429 if its client, or all clients together, have as many streams as allowed, and are reading
        them all."""
        own = [other for other, whose in self._open.items() if whose == client]
        if len(own) >= self._limits.client_streams and not self._close_one(own):
            raise RequestError(429, "too many streams of this client are open", retry=True)
        if len(self._open) >= self._limits.streams and not self._close_one(list(self._open)):
            raise RequestError(429, "too many streams are open", retry=True)
        self._open[sender] = client
        try:
            yield
        finally:
            self._open.pop(sender, None)

    def _slow(self, among: list[Sender]) -> list[Sender]:
        now = asyncio.get_running_loop().time()
        return [s for s in among if s.fetches and now - s.fetches_since >= SLOW_SECONDS]

    def _close_one(self, among: list[Sender]) -> bool:
        now = asyncio.get_running_loop().time()
        streams = Counter(self._open.values())
        if not (slow := self._slow(among)):
            return False
        slowest = min(slow, key=lambda s: (-streams[self._open[s]], s.fetches_since))
        logger.info("a stream that is not read was closed to make room for another")
        slowest.dropped = True
        slowest.clock.reschedule(now)
        del self._open[slowest]
        return True
