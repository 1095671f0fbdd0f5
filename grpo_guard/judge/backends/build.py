"""Build a backend from its configuration; the backend's packages are imported on first use."""

from __future__ import annotations

from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any

from grpo_guard.core.options import named, options_of, shown
from grpo_guard.core.redaction import hidden, secrets_in
from grpo_guard.core.registry import VERIFIERS, UnknownNameError, choose, load_class
from grpo_guard.judge.backends.base import Backend

BACKENDS = {
    "openai": "grpo_guard.judge.backends.openai:OpenAIBackend",
    "transformers": "grpo_guard.judge.backends.transformers:TransformersBackend",
    "vllm": "grpo_guard.judge.backends.vllm:VLLMBackend",
}


def build_backend(options: object) -> Backend:
    """Build the backend that ``{"type": NAME, ...}`` describes; NAME can be ``module:Class``.

    Raises:
        ValueError: the type is unknown or the options are wrong; the message hides any secrets.
    """
    try:
        return _built(options)
    except ValueError as error:
        raise ValueError(hidden(str(error), secrets_in(options))) from None


def _built(options: object) -> Backend:
    if not isinstance(options, Mapping) or "type" not in options:
        # Keys only: the values may include a secret.
        got = ", ".join(map(named, options)) if isinstance(options, Mapping) else shown(options)
        raise ValueError(
            f"backend: expected a mapping with type: {', '.join(BACKENDS)}, got {got or 'nothing'}"
        )
    arguments = dict(options)
    kind = arguments.pop("type")
    backend_class = _class_of(str(kind))
    where = f"backend ({kind})"
    checked = options_of(f"{kind}", backend_class).read(arguments, where).explicit_values()
    try:
        backend: Backend = backend_class(**checked)
    except TypeError as error:
        raise ValueError(f"{where}: {error}") from None
    return backend


def _class_of(kind: str) -> Any:
    try:
        if ":" not in kind:
            return resolve_name(BACKENDS[choose(BACKENDS, kind)])
        return load_class(VERIFIERS, kind, Backend)  # under the rules for imported verifiers
    except UnknownNameError as error:
        raise ValueError(f"backend.type: {error}") from None
