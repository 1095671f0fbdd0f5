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
