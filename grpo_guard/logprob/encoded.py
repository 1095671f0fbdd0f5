"""A completion of one or more turns as token ids, and the error if it cannot be encoded."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from grpo_guard.core.completion import Completion
from grpo_guard.core.given import Span
from grpo_guard.core.verdict import AUTHOR_CAUSES, Cause, Finding, Verdict, abstain, reject


class EncodeError(Exception):
    """Raised when a completion cannot be scored."""

    def __init__(self, cause: Cause, message: str, kind: str | None = None) -> None:
        self.cause = cause  # of the verdict
        self.kind = kind or cause.value  # of the finding
        super().__init__(message)


def malformed(message: str, kind: str | None = None) -> EncodeError:
    """Build the error for a fault that only the completion's author could have caused."""
    return EncodeError(Cause.MALFORMED, message, kind)


@dataclass(frozen=True, slots=True)
class Encoded:
    """A completion as token ids."""

    prompt_ids: tuple[int, ...]  # at least one
    completion_ids: tuple[int, ...]  # at least one
    from_text: bool  # whether the ids come from the text, and so may differ from those sampled
    seed: int | None = None  # the coin's seed if a coin is replayed; 0 <= seed < 2^64
    given: tuple[Span, ...] = ()
    """Spans of ``completion_ids`` that were not sampled. They are scored as context, and their
    statistics are discarded."""
    whole: "Encoded | None" = None  # the whole completion if this one holds only its drawn tokens
    author: str | None = field(default=None, compare=False)  # the sender, if known

    @property
    def places(self) -> NDArray[np.int64]:
        """Positions of the drawn tokens in the whole completion, [m]."""
        of = self.whole or self
        drawn = np.ones(len(of.completion_ids), np.bool_)
        for start, end in of.given:
            drawn[start:end] = False
        return np.flatnonzero(drawn)

    def drawn(self) -> "Encoded":
        """Return only the drawn tokens, which are what a completion's statistics are judged on."""
        if not self.given:
            return self
        ids = tuple(self.completion_ids[i] for i in self.places)
        return replace(self, completion_ids=ids, given=(), whole=self)

    def span(self, start: int, end: int) -> Span:
        """Map tokens [start, end) to a span of the whole completion; requires start < end."""
        if self.whole is None:
            return start, end
        places = self.places
        return int(places[start]), int(places[end - 1]) + 1


def memory_without_limit(verifier: str, max_new_tokens: int | None) -> str | None:
    """Return `CompletionVerifier.author_can_abstain` for this limit; None for no limit."""
    if max_new_tokens is not None:
        return None  # a declared length implies enough memory for it
    return f"{verifier} runs out of memory on a completion that is long enough; set max_new_tokens"


def encode_batch(
    verifier: str, encode: Callable[[Completion], Encoded], batch: Sequence[Completion]
) -> tuple[dict[int, Encoded], dict[int, Verdict]]:
    """Return encodings by index, plus verdicts on all the rest, by the cause of their error."""
    encoded, verdicts = dict[int, Encoded](), dict[int, Verdict]()
    for i, completion in enumerate(batch):
        try:
            encoded[i] = encode(completion)
        except EncodeError as error:
            blame = reject if error.cause in AUTHOR_CAUSES else abstain
            verdicts[i] = blame(verifier, error.cause, findings=(Finding(error.kind, str(error)),))
    return encoded, verdicts
