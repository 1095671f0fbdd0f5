"""Work that nobody waits for any more: its verdicts do not reach the ledger, and it fills no place.

A thread cannot be ended. When its client has been told that all completions abstain, or has gone,
the work goes on, and its verdicts would count against nodes whose completions nobody judged. The
client asks again, and what it then gets is what counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextvars import ContextVar

from starlette.requests import Request

from grpo_guard.completion import Completion
from grpo_guard.guard import Ledger
from grpo_guard.verdict import Verdict

logger = logging.getLogger("grpo_guard")
_given_up: ContextVar[threading.Event | None] = ContextVar("given_up", default=None)
_tells: ContextVar[Callable[[], bool]] = ContextVar("tells", default=lambda: True)


class UntilLate:
    """A ledger that is told only of what somebody still waits for."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def record(self, batch: Sequence[Completion], verdicts: Sequence[Verdict]) -> None:
        if not _tells.get()():
            # No warning: any client may leave, and a request that took too long has its own.
            logger.info("%d verdicts came too late for the ledger", len(verdicts))
            return
        self._ledger.record(batch, verdicts)


def given_up() -> threading.Event | None:
    """Of the work of this thread: set once nobody waits for it; None outside a request."""
    return _given_up.get()


def awaited() -> bool:
    """Whether somebody still waits for the work of this thread."""
    event = _given_up.get()
    return event is None or not event.is_set()


def until_late(ledger: Ledger | None) -> Ledger | None:
    return None if ledger is None else UntilLate(ledger)


def given_up_by(event: threading.Event, tells: Callable[[], bool]) -> None:
    """What this context's work is given up by, and what `UntilLate` asks before it tells."""
    _given_up.set(event)
    _tells.set(tells)


@contextlib.asynccontextmanager
async def while_it_waits(request: Request, leave: Callable[[], None]) -> AsyncIterator[None]:
    """Calls ``leave`` when the client of a request that was read goes away, or time runs out."""

    async def watch() -> None:
        with contextlib.suppress(RuntimeError, OSError):  # the connection's own, as it breaks
            while (await request.receive())["type"] != "http.disconnect":
                pass
        leave()

    watching = asyncio.create_task(watch())
    try:
        yield
    except BaseException:
        leave()
        raise
    finally:
        watching.cancel()
