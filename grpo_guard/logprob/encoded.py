"""A completion as token ids, of one turn or several, and why one cannot be had."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from grpo_guard.completion import Completion
from grpo_guard.given import Span
from grpo_guard.verdict import AUTHOR_CAUSES, Cause, Finding, Verdict, abstain, reject


class EncodeError(Exception):
    """A completion that cannot be scored, with the cause that its verdict gets.

    Args:
        cause: Of the verdict.
        message: One sentence for a person.
        kind: Of the finding; the cause's name unless it can be said more precisely.
    """

    def __init__(self, cause: Cause, message: str, kind: str | None = None) -> None:
        self.cause = cause
        self.kind = kind or cause.value
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Encoded:
    """A completion as token ids.

    Args:
        prompt_ids: Shape [P], P >= 1.
        completion_ids: Shape [n], n >= 1.
        from_text: The ids were made from the text, so they may differ from what was sampled.
        seed: Of the coin, where one is replayed; 0 <= seed < 2^64.
        given: Spans of ``completion_ids`` that nobody sampled: they are scored as context, and of
            their statistics nothing is kept.
        whole: What these are the drawn tokens of; None = they are the whole.
        author: Who sent it, as far as that is known.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    from_text: bool
    seed: int | None = None
    given: tuple[Span, ...] = ()
    whole: Encoded | None = None
    author: str | None = field(default=None, compare=False)

    @property
    def places(self) -> NDArray[np.int64]:
        """Where its tokens stand in the whole completion, or its drawn ones, [m]."""
        of = self.whole or self
        drawn = np.ones(len(of.completion_ids), np.bool_)
        for start, end in of.given:
            drawn[start:end] = False
        return np.flatnonzero(drawn)

    def drawn(self) -> Encoded:
        """Its drawn tokens alone, in the form that statistics of them are judged in."""
        if not self.given:
            return self
        ids = tuple(self.completion_ids[i] for i in self.places)
        return replace(self, completion_ids=ids, given=(), whole=self)

    def span(self, start: int, end: int) -> Span:
        """Tokens [start, end) of these as a span of the whole completion; start < end."""
        if self.whole is None:
            return start, end
        places = self.places
        return int(places[start]), int(places[end - 1]) + 1


def memory_without_limit(verifier: str, max_new_tokens: int | None) -> str | None:
    """`CompletionVerifier.author_can_abstain` of a verifier that scores so many tokens at most."""
    if max_new_tokens is not None:
        return None  # whoever declares a length has the memory for it
    return f"{verifier} runs out of memory on a completion that is long enough; set max_new_tokens"


def encode_batch(
    verifier: str, encode: Callable[[Completion], Encoded], batch: Sequence[Completion]
) -> tuple[dict[int, Encoded], dict[int, Verdict]]:
    """By place in the batch: what can be scored, and the verdicts on all else.

    Args:
        verifier: Name for the verdicts.
        encode: Raises `EncodeError` for what cannot be scored; its cause says whose doing it is.
        batch: Any completions.
    """
    encoded, verdicts = dict[int, Encoded](), dict[int, Verdict]()
    for i, completion in enumerate(batch):
        try:
            encoded[i] = encode(completion)
        except EncodeError as error:
            blame = reject if error.cause in AUTHOR_CAUSES else abstain
            verdicts[i] = blame(verifier, error.cause, findings=(Finding(error.kind, str(error)),))
    return encoded, verdicts
