"""The error with which a request is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class RequestError(Exception):
    """The request cannot be answered; the reply gives the reason.

    Args:
        status: HTTP status of the reply.
        message: One sentence, which reveals nothing of the server's own state.
        place: More fields of the reply, e.g. which completion it concerns.
        retry: Whether the same request may succeed later.
    """

    def __init__(
        self,
        status: int,
        message: str,
        place: Mapping[str, Any] | None = None,
        *,
        retry: bool = False,
    ) -> None:
        self.status, self.message, self.place, self.retry = status, message, place or {}, retry
        super().__init__(message)
