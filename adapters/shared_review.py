"""One verification per batch, shared by all the reward functions that a trainer calls on it."""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol
from weakref import WeakKeyDictionary

from grpo_guard.adapters.received import Row
from grpo_guard.guard import Guard, Review


class Reviewer(Protocol):
    """A guard, or what has its batches reviewed."""

    def review(self, batch: Sequence[Row]) -> Review:
        """Verdicts and metrics for one batch."""


class SharedReviews:
    """The review of the latest batch, so that several reward functions cost one verification.

    Only one is kept: within a batch TRL calls the functions one after the other, or all at once
    where they are async. A function that asks again after the review is done has a new batch that
    merely looks the same; it is verified again, since the policy may have moved on.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._digest = b""
        self._readers: set[int] = set()
        self._future: Future[Review] = Future()

    def get(
        self, reviewer: Reviewer, batch: Sequence[Row], *, reader: object
    ) -> tuple[Review, bool]:
        """The review, and whether this reader was the first to ask for it."""
        future, first = self._join(batch, reader)
        if first:
            _review_into(future, reviewer, batch)
        return future.result(), first

    async def aget(
        self, reviewer: Reviewer, batch: Sequence[Row], *, reader: object
    ) -> tuple[Review, bool]:
        """`get` without blocking the running loop.

        A thread of its own does the work and sets the result: were it a task of this loop, a
        cancelled first caller would take the review away from the others, and a sync function
        waiting for it on the loop's thread would wait for ever.
        """
        future, first = self._join(batch, reader)
        if first:
            run = contextvars.copy_context().run
            arguments = (_review_into, future, reviewer, batch)
            threading.Thread(target=run, args=arguments, daemon=True).start()
        return await asyncio.wrap_future(future), first

    def _join(self, batch: Sequence[Row], reader: object) -> tuple[Future[Review], bool]:
        # All fields count, the training round among them; repr tells "1" from 1 and quotes strings.
        digest = hashlib.sha256(repr(tuple(batch)).encode(errors="backslashreplace")).digest()
        with self._lock:
            again = id(reader) in self._readers and self._future.done()
            first = digest != self._digest or again
            if first:
                self._digest, self._readers, self._future = digest, set(), Future()
                # A running future cannot be cancelled: a caller that gives up only stops waiting.
                self._future.set_running_or_notify_cancel()
            self._readers.add(id(reader))
            return self._future, first


_all_reviews: WeakKeyDictionary[Guard, SharedReviews] = WeakKeyDictionary()
_all_reviews_lock = threading.Lock()


def shared_reviews(guard: Guard) -> SharedReviews:
    """Those of this guard, the same ones at each call."""
    with _all_reviews_lock:
        return _all_reviews.setdefault(guard, SharedReviews())


def _review_into(future: Future[Review], reviewer: Reviewer, batch: Sequence[Row]) -> None:
    try:
        future.set_result(reviewer.review(batch))
    except BaseException as error:  # whoever waits must hear of it, whatever it is
        future.set_exception(error)
