"""What a request is refused with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class RequestError(Exception):
    """The request cannot be answered; the client is told why.

    Args:
        status: Of the reply.
        message: One sentence; no part of the server's own state.
        place: More fields of the reply, e.g. which completion it is about.
        retry: Whether the same request may do later.
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
