"""When large work may begin, so that small requests do not wait for it.

Threads share one interpreter: two large batches at once take as long as one after the other, and
leave a small request a third of the processor instead of half. A verifier that waits for another
server needs no processor, though, and several of its batches should be under way.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from grpo_guard.server.limits import Limits
from grpo_guard.server.pace import Pace

BUSY = 0.5
"""Processor seconds per second of this process; above that, more work would only share them."""


class Lane:
    """Work that waits to be judged alone: parts of streams, and large requests.

    Large batches leave a quarter of the places to others; another one begins after
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
        """How many large batches are at work."""
        return len(self._begun)

    def delay(self, now: float, asked: float, others: bool) -> float:
        """Seconds until the caller should ask again whether the first in line, which has waited
        since ``asked``, may begin; 0 = now. ``others``: small requests wait or are at work. They
        come first, but cannot hold large ones up for longer than `Limits.batch_wait`."""
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
