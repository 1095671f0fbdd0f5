"""The small interface behind which every model that can judge looks the same."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

ChatMessage: TypeAlias = Mapping[str, str]
"""``role`` and ``content``, both strings."""


@dataclass(frozen=True, slots=True)
class Request:
    """One question to the model, answered by the likeliest tokens (temperature 0).

    Args:
        messages: The system message, then the user's.
        max_tokens: Longest answer, in tokens.
        top_logprobs: How many candidates of the first token to return; 0 = none.
        json_schema: What the answer must conform to, None = free text.
    """

    messages: tuple[ChatMessage, ...]
    max_tokens: int
    top_logprobs: int = 0
    json_schema: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """The model's answer, unread.

    Args:
        text: All of it.
        first_token: Candidates of the first token, (text, natural log-probability); None where
            they were not asked for or the backend cannot give them. Their probabilities may add up
            to less than 1.
        finish_reason: ``"stop"``, ``"length"``, ``"content_filter"``, or whatever it said.
        refusal: Whether the model or its provider declined to answer.
        tokens_in, tokens_out: As the backend counts them; 0 where it does not say.
    """

    text: str
    first_token: tuple[tuple[str, float], ...] | None = None
    finish_reason: str | None = None
    refusal: bool = False
    tokens_in: int = 0
    tokens_out: int = 0


class Backend(ABC):
    """A model that answers questions.

    A backend holds configuration only and is picklable; clients, engines and weights are made on
    first use, in the process that uses them. It neither retries nor limits: the judge does.

    Attributes:
        model: What is asked, for reports and the cache.
        revision: Distinguishes versions of it, for the cache; "" where nothing is known.
        batch_size: How many requests one call of `ask` may hold.
        concurrency: How many calls of `ask` may run at once.
    """

    model: str
    revision: str = ""
    batch_size: int = 1
    concurrency: int = 64

    @property
    def identity(self) -> str:
        """What tells this model from every other, for the cache.

        Of a folder of weights also the files' sizes and times: a model that was trained further is
        another one.
        """
        return repr((type(self).__qualname__, self.model, self.revision, _files(self.model)))

    @abstractmethod
    async def ask(self, requests: Sequence[Request], *, timeout: float) -> list[Reply]:
        """One reply per request, in order, on the judge's own event loop.

        Args:
            requests: At most ``batch_size``.
            timeout: Seconds after which the answer is of no use any more.

        Raises:
            BackendError: no answer, and not because of what the completion says.
        """

    async def check(self) -> None:  # noqa: B027 (nothing to find out is fine)
        """Find out whether the model can be asked at all, without judging anything.

        Raises:
            JudgeSetupError: it cannot; with the remedy.
        """


def _files(path: str) -> list[tuple[str, int, int]]:
    try:
        with os.scandir(path) as entries:
            found = [(entry.name, entry.stat()) for entry in entries]
    except (OSError, ValueError):
        return []  # a name, and no folder
    return sorted((name, stat.st_size, stat.st_mtime_ns) for name, stat in found)
