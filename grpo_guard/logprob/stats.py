"""Per-token statistics of one completion under the declared temperature."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Exponents of the flattened distributions q ~ p^b whose normalisers are kept; see `evidence.py`.
FLATTENINGS = (0.0, 0.5, 0.75)
# Up to this top-k the normalisers are over the declared top-k, beyond it over the vocabulary.
LARGEST_TOP_K = 256


@dataclass(frozen=True, slots=True)
class TokenStats:
    """What the verifier's policy says of each of the n tokens of a completion.

    All of it speaks of p, the softmax of (penalised) logits / temperature over the whole
    vocabulary, before any truncation; natural logarithms.

    Args:
        logprob: log p(token), shape [n].
        max_logprob: log p of the most likely token, shape [n].
        rank: Number of tokens with a strictly higher logit, so 0 is the most likely; shape [n].
        mass_above: Their total probability, shape [n].
        tail_mass: Probability of the token and all that are no likelier, shape [n]. Kept beside
            ``mass_above`` because 1 - mass_above has no digits left in the far tail.
        entropy: Of p, in nats, shape [n].
        log_set_mass: log sum p over the set K that the flattened distributions live on: the
            declared top-k, or the whole vocabulary where that is off or large; shape [n].
        log_flat_mass: log sum p^b over K for each b of `FLATTENINGS`, shape [n, 3].
        in_set: Whether the token belongs to K, boolean, shape [n].
        logit: The token's raw logit, after penalties and before temperature, shape [n].
        edge_gap: How far the raw logit lies below the least that the declared sampler keeps, in
            raw logits; 0 inside the support; shape [n].
    """

    logprob: Floats
    max_logprob: Floats
    rank: Ints
    mass_above: Floats
    tail_mass: Floats
    entropy: Floats
    log_set_mass: Floats
    log_flat_mass: Floats
    in_set: NDArray[np.bool_]
    logit: Floats
    edge_gap: Floats

    def __len__(self) -> int:
        return len(self.logprob)

    @property
    def finite(self) -> bool:
        """False when the model computed NaN somewhere. -inf log-probs are finite in this sense."""
        return not any(np.isnan(getattr(self, f.name)).any() for f in fields(self))
