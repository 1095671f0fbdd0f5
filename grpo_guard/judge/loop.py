"""One event loop in its own thread, for judges called from any context.

Trainers call rewards from plain threads, from within a running loop, and in forked workers.
``asyncio.run`` per batch would fail in the second case and close connections after every batch in
all of them. So coroutines run on one daemon thread per process, and callers wait for the results.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from grpo_guard.core.forks import Lock

T = TypeVar("T")
logger = logging.getLogger("grpo_guard")

# By process id: a forked child finds its parent's entry, but not the thread.
_loops: dict[int, "LoopThread"] = {}
# Inherited loops, kept alive so that no destructor closes sockets that the parent still uses.
_inherited: list["LoopThread"] = []


class LoopThread:
    """An event loop that runs in a daemon thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def usable(self) -> bool:
        """Whether the loop can run in this process; after a fork, its thread is missing."""
        return self._thread is None or self._thread.is_alive()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for it; raises RuntimeError if called on the loop's
        own thread, which would then wait for itself."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a judge was called from inside a judge's own event loop")
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_serve, args=(self._loop,), name="grpo-guard-judge", daemon=True
                )
                self._thread.start()
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # the caller was interrupted: nobody is waiting for the answers
            raise


def background_loop() -> LoopThread:
    """The event loop of this process, created on first use."""
    # setdefault is atomic; a lock could be inherited in its locked state by a forked child.
    loop = _loops.setdefault(os.getpid(), LoopThread())
    if not loop.usable:  # an ancestor had the same process id
        _inherited.append(loop)
        loop = _loops[os.getpid()] = LoopThread()
    return loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop until it is closed: a SystemExit in one task must not leave all others waiting."""
    while not loop.is_closed():
        try:
            loop.run_forever()
        except BaseException:
            logger.exception("the judge's event loop was interrupted, and continues")
