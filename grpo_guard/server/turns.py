"""Taking turns: how many requests are worked on at once, and for how long anybody waits.

A verifier may take its time, and a thread cannot be killed. A turn therefore ends when its work
does, not when its client was answered: otherwise requests that time out would pile up threads.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from grpo_guard.server.problems import RequestError

logger = logging.getLogger("grpo_guard")
T = TypeVar("T")


class Turns:
    """For the tasks of one event loop.

    Args:
        running: Turns at once.
        waiting: Who may wait for one.
    """

    def __init__(self, running: int, waiting: int) -> None:
        self._free = asyncio.Semaphore(running)
        self._may_wait = waiting
        self._waiting = 0

    @asynccontextmanager
    async def turn(self, deadline: float) -> AsyncIterator[Turn]:
        """Wait for a turn, until ``deadline`` on the loop's clock.

        Raises:
            RequestError: 503; too many wait, or the wait was too long.
        """
        if self._free.locked() and self._waiting >= self._may_wait:
            raise RequestError(503, "too many requests are waiting", retry=True)
        self._waiting += 1
        try:
            async with asyncio.timeout_at(deadline):
                await self._free.acquire()
        except TimeoutError:
            raise RequestError(503, "no turn came up in time", retry=True) from None
        finally:
            self._waiting -= 1
        turn = Turn(self._free.release)
        try:
            yield turn
        finally:
            turn.leave()


class Turn:
    """The right to one thread. Given back when its work is done."""

    def __init__(self, give_back: Callable[[], None]) -> None:
        self._give_back: Callable[[], None] | None = give_back

    def leave(self) -> None:
        """Give the turn back, unless a thread has it."""
        if self._give_back is not None:
            self._give_back()
            self._give_back = None

    async def run(self, work: Callable[[], T], deadline: float) -> T:
        """The result of ``work``, from a thread of its own; the loop stays free meanwhile.

        Raises:
            TimeoutError: no result by ``deadline`` on the loop's clock. The thread goes on, and
                keeps the turn.
            RequestError: 503; no thread could be started.
            Exception: whatever ``work`` raises.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        give_back = self._give_back or (lambda: None)

        def finish(result: T | None, error: Exception | None) -> None:
            give_back()
            if answer.done():  # the client was answered without it
                if error is not None:
                    logger.error("work that had timed out failed", exc_info=error)
            elif error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)  # type: ignore[arg-type]

        def target() -> None:
            result: T | None = None
            error: Any = None
            try:
                result = work()
            except BaseException as raised:
                # SystemExit would leave the turn taken for good; no future takes a StopIteration;
                # and a TimeoutError of the work's own is a failure, not the end of our patience.
                plain = isinstance(raised, Exception)
                if not plain or isinstance(raised, StopIteration | TimeoutError):
                    error = RuntimeError(f"{type(raised).__name__}: {raised!s:.200}")
                    error.__cause__ = raised
                else:
                    error = raised
            try:
                loop.call_soon_threadsafe(finish, result, error)
            except RuntimeError:
                logger.warning("the server stopped before its work was done")

        try:
            # A daemon: the pools of asyncio and concurrent.futures join their threads at exit, and
            # one verifier that hangs would keep the process from ending.
            threading.Thread(target=target, daemon=True).start()
        except RuntimeError:
            raise RequestError(503, "no thread could be started", retry=True) from None
        self._give_back = None
        async with asyncio.timeout_at(deadline):
            return await answer
