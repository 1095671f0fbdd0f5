"""The interface that scorers implement for verifiers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.stats import TokenStats


class OutOfMemoryError(RuntimeError):
    """Not even one completion fits into the memory budget; verifiers then abstain."""


class Scorer(Protocol):
    """Per-token statistics of completions under one policy.

    A scorer may be called from several threads and must return one result per sequence, in order.

    Two members are optional. ``check(spec)`` raises ValueError if `score` cannot compute what
    ``spec`` needs; verifiers call it when they are built, since otherwise an unsupported sampler
    would show only in the middle of training, as an abstention for every completion. A scorer whose
    ``replays`` is true takes ``replay=`` (a `Replay` or None) in `score`: every sequence then has a
    seed and gets its margins, which `SeedReplayVerifier` needs.
    """

    @property
    def vocab_size(self) -> int:
        """Rows of the model's embedding."""

    @property
    def window(self) -> int | None:
        """Longest sequence in tokens; None = unknown."""

    def identity(self) -> dict[str, str]:
        """What computes the numbers: architecture, engine, dtype. Profiles are tied to it."""

    def score(
        self, sequences: Sequence[Encoded], spec: SamplingSpec, *, mass_margin: float = 0.0
    ) -> list[TokenStats]:
        """Compute the statistics of each completion's tokens.

        Args:
            sequences: Prompts and completions as ids.
            spec: The declared sampler.
            mass_margin: Widening of top-p at which ``edge_gap`` is taken.

        Raises:
            OutOfMemoryError: one of the sequences does not fit.
            ValueError: this scorer cannot compute what ``spec`` needs.
        """


def score_apart(
    score: Callable[[Sequence[Encoded]], list[TokenStats]], sequences: Sequence[Encoded]
) -> list[TokenStats | OutOfMemoryError]:
    """Return statistics per completion, or an error if one does not fit by itself.

    Halving the batch keeps one huge completion from turning the check off for all others.
    """
    if not sequences:
        return []
    try:
        return list(score(sequences))
    except OutOfMemoryError as error:
        if len(sequences) == 1:
            return [error]
    middle = len(sequences) // 2
    halves = sequences[:middle], sequences[middle:]
    return [result for half in halves for result in score_apart(score, half)]
