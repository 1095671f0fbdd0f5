"""Other statistics of the same numbers, each a number per completion; larger is more foreign."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np

from grpo_guard.logprob.reference.cusum import cusum
from grpo_guard.logprob.reference.null import decay_rate, length_free
from grpo_guard.logprob.reference.profile import Settings, strangeness
from grpo_guard.logprob.stats import Floats, TokenStats

Statistic: TypeAlias = Callable[[TokenStats], float]
PerToken: TypeAlias = Callable[[TokenStats], Floats]

WINDOW: Final = 8
OURS: Final = "CUSUM of surprisal and entropy"


def contenders(honest: Sequence[TokenStats]) -> dict[str, Statistic]:
    """The statistics by name, with what they take from honest completions."""
    settings = Settings()
    per_token: dict[str, PerToken] = {
        "CUSUM of surprisal": lambda stats: np.minimum(-stats.logprob, settings.cap),
        "CUSUM of entropy": lambda stats: stats.entropy,
        OURS: lambda stats: strangeness(stats, settings.cap),
    }
    return {
        "perplexity": lambda stats: float(-stats.logprob.mean()),
        f"surprisal in windows of {WINDOW}": lambda stats: float(
            windowed(-stats.logprob, WINDOW).max()
        ),
        **{name: _largest_run(of, honest, settings.allowance) for name, of in per_token.items()},
    }


def _largest_run(of: PerToken, honest: Sequence[TokenStats], allowance: float) -> Statistic:
    values = np.concatenate([of(stats) for stats in honest])
    usual, spread = values.mean(), values.std()
    rate = decay_rate((values - usual) / spread - allowance)

    def statistic(stats: TokenStats) -> float:
        scores = (of(stats) - usual) / spread - allowance
        return length_free(cusum(scores).value, len(stats), rate)

    return statistic


def windowed(values: Floats, width: int) -> Floats:
    """Average over all windows of ``width`` values, or over all values if there are fewer.

    Args:
        values: Finite, shape [n], n >= 1.
        width: >= 1.

    Returns:
        Shape [max(1, n - width + 1)].
    """
    if width < 1:
        raise ValueError(f"width: expected an integer >= 1, got {width!r}")
    width = min(width, len(values))
    sums = np.concatenate([[0.0], np.cumsum(values)])
    means: Floats = (sums[width:] - sums[:-width]) / width
    return means
