"""How foreign each token is to the reference: how surprising, and how lost it is there."""

from __future__ import annotations

import numpy as np

from grpo_guard.logprob.stats import Floats, TokenStats


def strangeness(stats: TokenStats, cap: float) -> Floats:
    """Mean of surprisal -log p (at most ``cap``) and entropy H, in nats; shape [n].

    A foreign phrase raises both: its words are unlikely, and behind them the reference does not
    know what comes next. Their difference, which is how surprisal is usually standardised, cancels
    the second against the first and all but loses TEXT; either alone finds less than their mean
    (docs/reference-likelihood.md).

    Args:
        stats: Of n tokens; free of NaN.
        cap: Nats, > 0. A token that the reference rules out has infinite surprisal, and a single
            odd name or number, honest as it is, must not decide.
    """
    mean: Floats = (np.minimum(-stats.logprob, cap) + stats.entropy) / 2
    return mean


def standardised(stats: TokenStats, *, floor: float, cap: float) -> Floats:
    """Standardised surprisal (-log p - H) / sqrt(V + floor), at most ``cap`` in size; shape [n].

    What `strangeness` is compared with. Text that the reference wrote itself has mean 0.

    Args:
        stats: Of n tokens; free of NaN.
        floor: Nats squared beside the varentropy V, > 0: where a position is as good as settled, V
            is nearly 0.
        cap: Of the size, > 0.
    """
    surprise = -stats.logprob - stats.entropy
    scaled: Floats = np.clip(surprise / np.sqrt(stats.varentropy + floor), -cap, cap)
    return scaled


def windowed(values: Floats, width: int) -> Floats:
    """Means over all windows of ``width`` values, of all values where there are fewer.

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
