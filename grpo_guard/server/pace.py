"""Decides when work on large requests can proceed, so that small ones are not starved of CPU time.

Threads share one interpreter, and request bodies are read on the event loop that serves every
client. While small requests are arriving, each piece of large work (reading a megabyte of a body,
parsing a body, judging a batch) is therefore followed by a pause proportional to the time it took.
Turns rotate among the clients: a client that sends forty requests at once delays its own requests,
not those of others.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from grpo_guard.server.limits import Limits

REST = 1.5
"""Seconds of rest per second of work, so that most small requests find the processor idle."""
LATELY = 2.0
"""Seconds after a small request during which large work makes way for the next small request."""
LONGEST_REST = 5.0
"""Maximum length of a rest, in seconds."""
PIECE = 1024 * 1024
"""Bytes of a body that are read in one turn."""
BYTE_SECONDS = 6e-9
"""Seconds that the loop takes to read a byte: 11 ms for 1.9 MiB on the machine in docs/serve.md."""
SOON = 0.002
"""Minimum number of seconds between two turns, during which other tasks of the loop can run."""
BUSY = 0.5
"""CPU use of this process (1 = one processor) above which more large work gains nothing."""
GIVE_WAY = 0.25
"""Maximum number of seconds that a body's next turn waits for a batch to be judged first."""


class Pace:
    """Schedules the large work of one event loop."""

    def __init__(self) -> None:
        self.judging: Callable[[], bool] = lambda: False
        """Whether large work is waiting to be judged; such work takes turns with bodies."""
        self._small_at = self._rests_until = float("-inf")
        self._judged_last = True
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # in the order of their turns
        self._looks_again: asyncio.TimerHandle | None = None

    def make_way(self, now: float) -> None:
        """Record a small request."""
        self._small_at = now

    def rest(self, now: float) -> float:
        """Return the number of seconds until large work can proceed; 0 if it can proceed now."""
        return max(0.0, self._rests_until - now) if now - self._small_at < LATELY else 0.0

    def worked(self, seconds: float, now: float, *, judged: bool = False) -> None:
        """Record the CPU seconds that a large piece of work took; ``judged`` tells whether the work
        was to judge a batch of completions."""
        until = max(self._rests_until, now) + REST * seconds
        self._rests_until = min(until, now + LONGEST_REST)
        self._judged_last |= judged

    async def turn(self, client: str, size: int = 0) -> None:
        """Wait until a client's large work can proceed, and record that ``size`` bytes are read."""
        loop = asyncio.get_running_loop()
        if self._waiting or self.rest(loop.time()):
            granted: asyncio.Future[None] = loop.create_future()
            self._waiting.setdefault(client, deque()).append(granted)
            if self._looks_again is None:
                self._grant()
            await granted
        self.worked(size * BYTE_SECONDS, loop.time())

    def _grant(self) -> None:
        """Give the next client its turn if it is time; check again while any client waits."""
        self._looks_again = None
        loop = asyncio.get_running_loop()
        rest = self.rest(loop.time())
        if not rest and not self._gives_way(loop.time()):
            granted = self._next()
            if granted is not None:
                granted.set_result(None)
                self._judged_last = False
        if self._waiting:
            # The task whose turn it is records its work before the loop gets back to this point.
            self._looks_again = loop.call_later(max(rest, SOON), self._grant)

    def _next(self) -> asyncio.Future[None] | None:
        """Take the first future still waiting for the client whose turn it is; that client then
        moves to the end of the queue."""
        while self._waiting:
            client, own = next(iter(self._waiting.items()))
            del self._waiting[client]
            while own and (first := own.popleft()):
                if not first.done():  # its request is still in progress
                    if own:
                        self._waiting[client] = own
                    return first
        return None

    def _gives_way(self, now: float) -> bool:
        """Whether a batch should be judged before work on the next body proceeds."""
        lately = now - self._small_at < LATELY and now < self._rests_until + GIVE_WAY
        return lately and not self._judged_last and self.judging()


class Lane:
    """Work waiting to be judged on its own: parts of streams, and large requests.

    Threads share one interpreter: two large batches at once take as long as one after the other,
    and leave a small request a third of the processor instead of half. A verifier that waits for
    another server uses no CPU time, though, and several of its batches should be in progress.

    Large batches leave a quarter of the places to others; another large batch begins after
    `Limits.batch_wait` at the earliest.
    """

    def __init__(self, limits: Limits, pace: Pace) -> None:
        self.waiting: deque[Any] = deque()
        self._pace = pace
        pace.judging = lambda: bool(self.waiting) and not self._begun
        self._patience = min(limits.batch_wait, limits.seconds / 4)
        self._hangs = limits.seconds / 2
        self._most = max(1, limits.running - max(1, limits.running // 4))
        self._begun: dict[object, tuple[float, float]] = {}

    @property
    def at_work(self) -> int:
        """Number of large batches in progress."""
        return len(self._begun)

    def delay(self, now: float, asked: float, others: bool) -> float:
        """Return the number of seconds until the caller should ask again whether the first in line,
        which has waited since ``asked``, can begin; 0 if it can begin now. ``others`` tells whether
        small requests are waiting or in progress: they come first, but cannot hold up large ones
        for longer than `Limits.batch_wait`."""
        if self.at_work >= self._most:
            return self._patience
        until = asked + self._patience if others else now
        until = max(until, now + self._pace.rest(now))
        if self._begun:
            since, processor = next(reversed(self._begun.values()))
            busy = time.process_time() - processor > BUSY * (now - since)
            # A batch that hangs while something else uses the processor must not stop all others.
            until = max(until, since + (self._hangs if busy else self._patience))
        return max(0.0, min(until - now, self._patience))

    def begin(self, batch: object, now: float) -> None:
        """Record that a large batch begins."""
        self._begun[batch] = now, time.process_time()

    def end(self, batch: object, now: float) -> None:
        """Record that a batch is done, if it is a large one."""
        if (begun := self._begun.pop(batch, None)) is not None:
            worked = min(now - begun[0], time.process_time() - begun[1])
            self._pace.worked(worked, now, judged=True)
