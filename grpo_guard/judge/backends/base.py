"""The small interface that all judge models share."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

ChatMessage: TypeAlias = Mapping[str, str]
"""A message: ``role`` and ``content``, both strings."""


@dataclass(frozen=True, slots=True)
class Request:
    """One question to the model, answered greedily (temperature 0).

    Args:
        messages: The system message, followed by the user message.
        max_tokens: Maximum length of the answer, in tokens.
        top_logprobs: Number of candidates to return for the first token; 0 for none.
        json_schema: JSON schema of the answer; None for free text.
    """

    messages: tuple[ChatMessage, ...]
    max_tokens: int
    top_logprobs: int = 0
    json_schema: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """The model's raw answer.

    Args:
        text: The whole answer.
        first_token: Candidates for the first token, as (text, natural log-probability); None if
            they were not requested or the backend cannot give them. Their probabilities may sum to
            less than 1.
        finish_reason: ``"stop"``, ``"length"``, ``"content_filter"``, or a reason specific to the
            server.
        refusal: Whether the model or its provider declined to answer.
        tokens_in, tokens_out: Number of tokens, as counted by the backend; 0 if not reported.
    """

    text: str
    first_token: tuple[tuple[str, float], ...] | None = None
    finish_reason: str | None = None
    refusal: bool = False
    tokens_in: int = 0
    tokens_out: int = 0


class Backend(ABC):
    """A model that answers questions.

    A backend holds configuration only and is picklable; clients, engines and weights are created on
    first use, in the process that uses them. A backend neither retries nor enforces limits: the
    judge does.

    Attributes:
        model: Name of the model, for reports and the cache.
        revision: Version of the model, for the cache; "" if unknown.
        batch_size: Maximum number of requests per call to `ask`.
        concurrency: Maximum number of concurrent calls to `ask`.
    """

    model: str
    revision: str = ""
    batch_size: int = 1
    concurrency: int = 64

    @property
    def identity(self) -> str:
        """The text that identifies this model in the cache.

        For a folder of weights it includes the files' sizes and times: a model that has been
        trained further counts as a different model.
        """
        return repr((type(self).__qualname__, self.model, self.revision, _files(self.model)))

    @abstractmethod
    async def ask(self, requests: Sequence[Request], *, timeout: float) -> list[Reply]:
        """Return one reply per request, in order, on the judge's own event loop.

        Args:
            requests: The questions to answer, at most ``batch_size``.
            timeout: Seconds after which an answer is no longer of any use.

        Raises:
            BackendError: there is no answer, for a reason unrelated to the completion's content.
        """

    async def check(self) -> None:  # noqa: B027 (a backend may have nothing to check)
        """Check that the model can be queried at all, without judging anything.

        Raises:
            JudgeSetupError: the model cannot be queried; the message states the remedy.
        """

    def unready(self) -> str | None:
        """Say what the model still needs, such as a key, and how to provide it; None if nothing is
        known to be missing. Makes no request."""
        return None

    def unreached(self) -> str | None:
        """Say why the model's server cannot be reached at present, with the remedy; None if it can
        be reached or may just be busy. Waits at most two seconds once the server's name has been
        resolved."""
        return None


def _files(path: str) -> list[tuple[str, int, int]]:
    try:
        with os.scandir(path) as entries:
            found = [(entry.name, entry.stat()) for entry in entries]
    except (OSError, ValueError):
        return []  # a model name, not a folder
    return sorted((name, stat.st_size, stat.st_mtime_ns) for name, stat in found)
