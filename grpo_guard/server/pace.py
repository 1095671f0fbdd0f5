"""When work on large requests may go on, so that small requests find the processor free.

Threads share one interpreter, and bodies are read by the loop that answers everybody. So while
small requests come, each piece of large work (reading a megabyte of a body, parsing a body, judging
a batch) is followed by a rest in proportion to the time it took. Turns rotate among the clients: a
client that sends forty requests at once delays its own requests, not those of others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

REST = 1.5
"""Seconds of rest per second of work, so that most small requests find the processor free."""
LATELY = 2.0
"""Seconds after a small request in which large work makes way for the next one."""
LONGEST_REST = 5.0
"""Seconds."""
PIECE = 1024 * 1024
"""Bytes of a body that are read in one turn."""
BYTE_SECONDS = 6e-9
"""Time that the loop takes to read a byte: 11 ms for 1.9 MiB on the machine of docs/serve.md."""
SOON = 0.002
"""Least seconds between two turns, in which other tasks of the loop can run."""
GIVE_WAY = 0.25
"""How many seconds a body's next turn waits at most for a batch to be judged before it."""


class Pace:
    """Turns of large work, for the tasks of one event loop."""

    def __init__(self) -> None:
        self.judging: Callable[[], bool] = lambda: False
        """Whether large work waits to be judged; it takes turns with bodies."""
        self._small_at = self._rests_until = float("-inf")
        self._judged_last = True
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # in the order of their turns
        self._looks_again: asyncio.TimerHandle | None = None

    def make_way(self, now: float) -> None:
        """Record a small request."""
        self._small_at = now

    def rest(self, now: float) -> float:
        """Seconds until large work may go on; 0 = now."""
        return max(0.0, self._rests_until - now) if now - self._small_at < LATELY else 0.0

    def worked(self, seconds: float, now: float, *, judged: bool = False) -> None:
        """Record the processor seconds of large work that is done; ``judged``: it was a batch of
        completions."""
        until = max(self._rests_until, now) + REST * seconds
        self._rests_until = min(until, now + LONGEST_REST)
        self._judged_last |= judged

    async def turn(self, client: str, size: int = 0) -> None:
        """Wait until a client's large work may go on, and record ``size`` bytes of it."""
        loop = asyncio.get_running_loop()
        if self._waiting or self.rest(loop.time()):
            granted: asyncio.Future[None] = loop.create_future()
            self._waiting.setdefault(client, deque()).append(granted)
            if self._looks_again is None:
                self._grant()
            await granted
        self.worked(size * BYTE_SECONDS, loop.time())

    def _grant(self) -> None:
        """Let the next client have a turn if it is time for one, and look again while some wait."""
        self._looks_again = None
        loop = asyncio.get_running_loop()
        rest = self.rest(loop.time())
        if not rest and not self._gives_way(loop.time()):
            granted = self._next()
            if granted is not None:
                granted.set_result(None)
                self._judged_last = False
        if self._waiting:
            # The task whose turn it is takes note of its work before the loop gets back to this.
            self._looks_again = loop.call_later(max(rest, SOON), self._grant)

    def _next(self) -> asyncio.Future[None] | None:
        """The first future that still waits, of the client whose turn it is; that client then goes
        to the end."""
        while self._waiting:
            client, own = next(iter(self._waiting.items()))
            del self._waiting[client]
            while own and (first := own.popleft()):
                if not first.done():  # its request has not ended meanwhile
                    if own:
                        self._waiting[client] = own
                    return first
        return None

    def _gives_way(self, now: float) -> bool:
        """Whether a batch should be judged before the next body goes on."""
        lately = now - self._small_at < LATELY and now < self._rests_until + GIVE_WAY
        return lately and not self._judged_last and self.judging()
