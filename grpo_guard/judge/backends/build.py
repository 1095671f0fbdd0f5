"""A backend from its configuration; what it needs is imported when it is first asked."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from grpo_guard.judge.backends.base import Backend
from grpo_guard.redaction import hidden, secrets_in

BACKENDS = {
    "openai": "grpo_guard.judge.backends.openai:OpenAIBackend",
    "transformers": "grpo_guard.judge.backends.transformers:TransformersBackend",
    "vllm": "grpo_guard.judge.backends.vllm:VLLMBackend",
}


def build_backend(options: Mapping[str, Any]) -> Backend:
    """The backend that ``{"type": NAME, ...}`` describes.

    Raises:
        ValueError: unknown type, or wrong options; without the secrets among them.
    """
    try:
        return _built(options)
    except ValueError as error:
        raise ValueError(hidden(str(error), secrets_in(options))) from None


def _built(options: Mapping[str, Any]) -> Backend:
    if not isinstance(options, Mapping) or "type" not in options:
        # Not the values: a key may be among them.
        got = ", ".join(map(str, options)) if isinstance(options, Mapping) else type(options)
        raise ValueError(
            f"backend: expected a mapping with type: {', '.join(BACKENDS)}, got {got!s:.80}"
        )
    arguments = dict(options)
    kind = arguments.pop("type")
    if kind not in BACKENDS:
        nearest = difflib.get_close_matches(str(kind), BACKENDS, n=1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise ValueError(f"backend.type: expected one of {', '.join(BACKENDS)}, got {kind!r}{hint}")
    module, _, name = BACKENDS[kind].partition(":")
    backend_class = getattr(import_module(module), name)
    known = list(inspect.signature(backend_class).parameters)
    for option in arguments:
        if option not in known:
            nearest = difflib.get_close_matches(str(option), known, n=1)
            hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
            raise ValueError(
                f"backend ({kind}): expected one of {', '.join(known)}, got {option!r}{hint}"
            )
    try:
        backend = backend_class(**arguments)
    except TypeError as error:
        raise ValueError(f"backend ({kind}): {error}") from None
    assert isinstance(backend, Backend)
    return backend
