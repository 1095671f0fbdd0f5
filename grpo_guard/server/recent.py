"""Answers that may have been lost in transit, kept for clients that ask again.

If a client repeated a request because the answer was lost, the request would be judged twice and
count twice in the memory of nodes; with an identity, its envelopes would be used up. A client that
names the request in an ``Idempotency-Key`` gets the first answer again.
"""

import asyncio
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Final

from grpo_guard.server.limits import PARSED_AT_ONCE
from grpo_guard.server.replies import ReplyBody, RequestError

MOST: Final = 1024
MOST_CHARACTERS: Final = 16 * 1024 * 1024
"""Maximum number of characters of all kept answers; the oldest are dropped first."""


class Recent:
    """Recent answers, for the tasks of one event loop."""

    def __init__(self) -> None:
        self._known: dict[bytes, asyncio.Future[ReplyBody | None]] = {}
        self._kept: dict[bytes, int] = {}
        self._waiting: set[bytes] = set()

    async def answer(
        self, key: str, path: str, body: bytes, ask: Callable[[], Awaitable[tuple[ReplyBody, bool]]]
    ) -> ReplyBody:
        """Return the answer that this request (path and body) got under the client's key, or is
        about to get; otherwise the answer from ``ask``, which is kept only if the ledger recorded
        it. Raises RequestError 429 if another request is already waiting for this answer, and
        whatever ``ask`` raises."""
        head = f"{key}\n{path}\n".encode("utf-8", "surrogatepass")
        # In a thread: hashing megabytes here would block everything else.
        large = len(body) > PARSED_AT_ONCE
        digest = await asyncio.to_thread(sha256, head + body) if large else sha256(head + body)
        name = digest.digest()
        while name in self._known:
            if name in self._waiting:  # or each failure would wake them all
                raise RequestError(429, "this request is being answered", retry=True)
            self._waiting.add(name)
            try:
                answered = await asyncio.shield(self._known[name])
            finally:
                self._waiting.discard(name)
            if answered is not None:
                return answered
        answer = self._known[name] = asyncio.get_running_loop().create_future()
        kept: ReplyBody | None = None
        try:
            answered, lasts = await ask()
            kept = answered if lasts else None
            return answered
        finally:
            answer.set_result(kept)
            if kept is None:
                del self._known[name]
            else:
                self._keep(name, len(kept.text))

    def _keep(self, name: bytes, characters: int) -> None:
        self._kept[name] = characters
        while len(self._kept) > MOST or sum(self._kept.values()) > MOST_CHARACTERS:
            oldest = next(iter(self._kept))
            del self._kept[oldest], self._known[oldest]
