"""Replies to clients, and the error with which a request is refused."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response


class RequestError(Exception):
    """The request cannot be answered, for the reason in the message: one sentence, which reveals
    nothing about the server's own state. ``place`` has further fields of the reply, such as which
    completion it concerns; ``retry`` says whether the same request may succeed later."""

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


@dataclass(frozen=True, slots=True)
class ReplyBody:
    """An answer as JSON text, and how many completions it accepts, rejects and abstains on."""

    text: str
    outcomes: Mapping[str, int]


def as_json(content: Any) -> str:
    """Encode ``content`` as JSON in ASCII, so that lone surrogates pass; NaN and infinities become
    null."""
    try:
        return _ENCODER.encode(content)
    except ValueError:
        # NaN is not JSON. A single NaN from a verifier would spoil the reply for all completions.
        return _ENCODER.encode(_finite(content))


_ENCODER = json.JSONEncoder(allow_nan=False)


def reply(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Build a JSON reply."""
    return Response(as_json(content), status, headers, media_type="application/json")


def refused(error: RequestError) -> Response:
    """Build the reply that refuses a request and gives the reason."""
    headers = {"Retry-After": "1"} if error.retry else {}
    headers |= {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
    # The rest of a refused body is not read.
    headers["Connection"] = "close"
    return reply({"error": error.message, **error.place}, error.status, headers)


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {name: _finite(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
