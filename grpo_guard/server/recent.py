"""Answers that may have been lost on their way, for clients that ask again.

A request whose answer was lost and that is made again would be judged twice, and count twice in
the memory of nodes; with an identity, its envelopes are used up. A client that names the request in
an ``Idempotency-Key`` gets the first answer again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Final

from grpo_guard.server.limits import PARSED_AT_ONCE
from grpo_guard.server.problems import RequestError
from grpo_guard.server.replies import Told

MOST: Final = 1024
MOST_CHARACTERS: Final = 16 * 1024 * 1024
"""Of all that is kept; the oldest goes first."""


class Recent:
    """For the tasks of one event loop."""

    def __init__(self) -> None:
        self._known: dict[bytes, asyncio.Future[Told | None]] = {}
        self._kept: dict[bytes, int] = {}
        self._waiting: set[bytes] = set()

    async def told(
        self, key: str, path: str, body: bytes, ask: Callable[[], Awaitable[tuple[Told, bool]]]
    ) -> Told:
        """What was answered to this request, or is being answered; else what ``ask`` says.

        Args:
            key: The client's; the same for another path or body is another.
            path, body: Of the request.
            ask: The answer, and whether it is what the ledger was told. Another is not kept.

        Raises:
            RequestError: 429; another waits for this answer already.
            Exception: of ``ask``.
        """
        head = f"{key}\n{path}\n".encode("utf-8", "surrogatepass")
        # In a thread: of megabytes it would have all else stand still.
        large = len(body) > PARSED_AT_ONCE
        digest = await asyncio.to_thread(sha256, head + body) if large else sha256(head + body)
        name = digest.digest()
        while name in self._known:
            if name in self._waiting:  # each failure would wake all of them
                raise RequestError(429, "this request is being answered", retry=True)
            self._waiting.add(name)
            try:
                told = await asyncio.shield(self._known[name])
            finally:
                self._waiting.discard(name)
            if told is not None:
                return told
        answer = self._known[name] = asyncio.get_running_loop().create_future()
        kept: Told | None = None
        try:
            told, lasts = await ask()
            kept = told if lasts else None
            return told
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
