"""Work no client is waiting for any more: its verdicts neither reach the ledger nor fill a place.

A thread cannot be stopped. Once its client has received an abstention for each completion, or has
left, the work goes on, and its verdicts would count against nodes although no client received them.
The client asks again, and the verdicts that it gets then are the ones that count.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextvars import ContextVar

from starlette.requests import Request

from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Verdict
from grpo_guard.guard import Ledger

logger = logging.getLogger("grpo_guard")
_given_up: ContextVar[threading.Event | None] = ContextVar("given_up", default=None)
_wanted: ContextVar[Callable[[], bool]] = ContextVar("wanted", default=lambda: True)


class UntilLate:
    """A ledger that records only verdicts that a client is still waiting for."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def record(self, batch: Sequence[Completion], verdicts: Sequence[Verdict]) -> None:
        if not _wanted.get()():
            # No warning: any client may leave, and a request that took too long logs its own.
            logger.info("%d verdicts came too late for the ledger", len(verdicts))
            return
        self._ledger.record(batch, verdicts)


def given_up() -> threading.Event | None:
    """Return the event that is set once no client is waiting for this thread's work; None outside a
    request."""
    return _given_up.get()


def awaited() -> bool:
    """Whether a client is still waiting for the work of this thread."""
    event = _given_up.get()
    return event is None or not event.is_set()


def until_late(ledger: Ledger | None) -> Ledger | None:
    return None if ledger is None else UntilLate(ledger)


def given_up_by(event: threading.Event, wanted: Callable[[], bool]) -> None:
    """Set the event that gives up this context's work, and the function that `UntilLate` asks
    before it records."""
    _given_up.set(event)
    _wanted.set(wanted)


@contextlib.asynccontextmanager
async def while_it_waits(request: Request, leave: Callable[[], None]) -> AsyncIterator[None]:
    """Call ``leave`` when the client of a request that was read goes away, or when the context ends
    with an error, such as a timeout."""

    async def watch() -> None:
        with contextlib.suppress(RuntimeError, OSError):  # raised by a connection that breaks
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
