"""Replies in strict JSON."""

from __future__ import annotations

import json
import math
from typing import Any

from fastapi import Response


def reply(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON reply: in ASCII, so that lone surrogates pass, and null for what is no number."""
    try:
        text = json.dumps(content, allow_nan=False)
    except ValueError:
        # NaN is no JSON. One in a verifier's figures would spoil the reply for all completions.
        text = json.dumps(_finite(content), allow_nan=False)
    return Response(text, status, headers, media_type="application/json")


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {name: _finite(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
