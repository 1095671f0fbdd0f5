"""The interface that scorers implement for verifiers."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.stats import TokenStats

PLAIN: Final = SamplingSpec("transformers", temperature=1.0, top_k=0, top_p=1.0)
"""The model's own distribution, without any truncation."""


class OutOfMemoryError(RuntimeError):
    """Raised when even a single completion does not fit into memory; verifiers then abstain."""


class Scorer(Protocol):
    """Computes per-token statistics of completions under one policy, from any thread.

    Two members are optional. ``check(spec)`` raises ValueError if `score` cannot compute what
    ``spec`` needs; verifiers call it on construction, because an unsupported sampler would
    otherwise only surface in the middle of training, as an abstention on every completion. A scorer
    whose ``replays`` is true accepts ``replay=`` (a `Replay` or None) in `score`: every sequence
    then has a seed, and its statistics include the margins needed by `SeedReplayVerifier`.
    """

    @property
    def vocab_size(self) -> int:
        """Number of rows in the model's embedding."""

    @property
    def window(self) -> int | None:
        """Maximum sequence length in tokens, or None if unknown."""

    def identity(self) -> dict[str, str]:
        """Return what the numbers, and hence a profile, depend on: architecture, engine, dtype."""

    def score(
        self, sequences: Sequence[Encoded], spec: SamplingSpec, *, mass_margin: float = 0.0
    ) -> list[TokenStats]:
        """Compute the statistics of each completion's tokens, in order, under the sampler ``spec``.

        ``edge_gap`` is computed with top-p widened by ``mass_margin``.

        Raises:
            OutOfMemoryError: one of the sequences does not fit into memory.
            ValueError: the scorer cannot compute what ``spec`` needs.
        """


def score_apart(
    score: Callable[[Sequence[Encoded]], list[TokenStats]], sequences: Sequence[Encoded]
) -> list[TokenStats | OutOfMemoryError]:
    """Return each completion's statistics, or the error if it does not fit into memory on its own.

    The batch is halved so that one huge completion cannot turn the check off for all the others.
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


def plain_stats(
    scorer: Scorer, sequences: Sequence[Encoded]
) -> list[TokenStats | OutOfMemoryError]:
    """Return each sequence's statistics under `PLAIN`, as `score_apart` does."""
    return score_apart(lambda some: scorer.score(some, PLAIN), sequences)
