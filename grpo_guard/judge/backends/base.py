"""The small interface that all judge models share, and a model built from its configuration."""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any, TypeAlias

from grpo_guard.core.options import named, options_of, shown
from grpo_guard.core.redaction import hidden, secrets_in
from grpo_guard.core.registry import VERIFIERS, UnknownNameError, choose, load_class

ChatMessage: TypeAlias = Mapping[str, str]
"""A message: ``role`` and ``content``, both strings."""


@dataclass(frozen=True, slots=True)
class Request:
    """One question to the model, answered greedily (temperature 0)."""

    messages: tuple[ChatMessage, ...]  # the system message, followed by the user message
    max_tokens: int  # maximum length of the answer
    top_logprobs: int = 0  # number of candidates to return for the first token
    json_schema: Mapping[str, Any] | None = None  # of the answer; None for free text


@dataclass(frozen=True, slots=True)
class Reply:
    """The model's raw answer."""

    text: str
    first_token: tuple[tuple[str, float], ...] | None = None
    """Candidates for the first token, as (text, natural log-probability); None if they were not
    requested or the backend cannot give them. Their probabilities may sum to less than 1."""
    finish_reason: str | None = None  # "stop", "length", "content_filter", or the server's own
    refusal: bool = False  # whether the model or its provider declined to answer
    tokens_in: int = 0  # as counted by the backend; 0 if not reported
    tokens_out: int = 0


class Backend(ABC):
    """A model that answers questions.

    A backend holds configuration only and is picklable; clients, engines and weights are created on
    first use, in the process that uses them. A backend neither retries nor enforces limits: the
    judge does.
    """

    model: str  # name of the model, for reports and the cache
    revision: str = ""  # version of the model, for the cache; "" if unknown
    batch_size: int = 1  # maximum number of requests per call to `ask`
    concurrency: int = 64  # maximum number of concurrent calls to `ask`

    @property
    def identity(self) -> str:
        """The text that identifies this model in the cache. For a folder of weights it includes the
        files' sizes and times: a model that has been trained further is a different model."""
        return repr((type(self).__qualname__, self.model, self.revision, _files(self.model)))

    @abstractmethod
    async def ask(self, requests: Sequence[Request], *, timeout: float) -> list[Reply]:
        """Return one reply to each of at most ``batch_size`` requests, in order, on the judge's own
        event loop; an answer after ``timeout`` seconds is of no use.

        Raises:
            BackendError: there is no answer, for a reason unrelated to the completion's content.
        """

    async def check(self) -> None:  # noqa: B027 (a backend may have nothing to check)
        """Check that the model can be queried at all; if not, raise a JudgeSetupError that states
        the remedy."""

    def unready(self) -> str | None:
        """Say what the model still needs, such as a key, and how to provide it; asks nobody."""
        return None

    def unreached(self) -> str | None:
        """Say why the model's server cannot be reached, with the remedy; None if it may just be
        busy. Waits at most two seconds once the server's name has been resolved."""
        return None


def _files(path: str) -> list[tuple[str, int, int]]:
    try:
        with os.scandir(path) as entries:
            found = [(entry.name, entry.stat()) for entry in entries]
    except (OSError, ValueError):
        return []  # a model name, not a folder
    return sorted((name, stat.st_size, stat.st_mtime_ns) for name, stat in found)


BACKENDS = {
    "openai": "grpo_guard.judge.backends.openai:OpenAIBackend",
    "transformers": "grpo_guard.judge.backends.transformers:TransformersBackend",
    "vllm": "grpo_guard.judge.backends.vllm:VLLMBackend",
}


def build_backend(options: object) -> Backend:
    """Build the backend that ``{"type": NAME, ...}`` describes; NAME can be ``module:Class``. The
    message of a ValueError hides any secrets."""
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
