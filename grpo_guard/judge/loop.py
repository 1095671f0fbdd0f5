"""One event loop in a thread of its own, for whoever calls a judge from wherever.

Trainers call rewards from plain threads, from within a running loop, and in forked workers.
``asyncio.run`` per batch would fail in the second case and tear down connections in all of them. So
coroutines run on one daemon thread per process, and callers wait for their results.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

# By process: after a fork the child finds its parent's entry, whose thread does not exist there.
_loops: dict[int, LoopThread] = {}


class LoopThread:
    """An event loop that runs in a daemon thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="grpo-guard-judge", daemon=True
                )
                self._thread.start()
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for it.

        Raises:
            RuntimeError: called on the loop's own thread, which would wait for itself.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a judge was called from inside a judge's own event loop")
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # the caller was interrupted: nobody waits for the answers any more
            raise


def background_loop() -> LoopThread:
    """The loop of this process, made on first use."""
    # setdefault is atomic; a lock would be inherited locked by a child forked at the wrong moment.
    return _loops.setdefault(os.getpid(), LoopThread())
