"""Per-token statistics of one completion under the declared temperature."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Exponents b of the flattened distributions q ~ p^b whose normalisers are kept; see `evidence.py`.
FLATTENINGS = (0.0, 0.5, 0.75)
# Up to this top-k the normalisers cover roughly the top-k, above it the whole vocabulary.
LARGEST_TOP_K = 256
# Approximate maximum number of block leaders per row, so that leaders are cheap compared to a tile.
MOST_LEADERS = 8192
# Spacing of the token ids in a block. Tokenizers number digits, operators and the letters of an
# alphabet consecutively: if those shared a block, all but the most likely would be hidden.
LEADER_STRIDE = 32


def leader_block(vocab_size: int) -> int:
    """Return how many tokens share a leader: the smallest power of two allowed."""
    block = 1
    while vocab_size > block * MOST_LEADERS:
        block *= 2
    return block


def leader_count(vocab_size: int) -> int:
    """Return the number of leaders in a row; the last blocks may be empty."""
    return -(-vocab_size // (LEADER_STRIDE * leader_block(vocab_size))) * LEADER_STRIDE


@dataclass(frozen=True, slots=True)
class TokenStats:
    """The verifier's statistics for each of a completion's n tokens.

    All statistics describe p, the softmax of (penalised) logits / temperature over the whole
    vocabulary, before any truncation. Logarithms are natural.

    Args:
        logprob: log p(token), shape [n].
        max_logprob: log p of the most likely token, shape [n].
        rank: Number of tokens with a strictly higher logit (0 for the most likely), shape [n].
        mass_above: Total probability of the tokens with a strictly higher logit, shape [n].
        tail_mass: Total probability of the token and all tokens no likelier, shape [n]. Stored
            alongside ``mass_above`` because 1 - mass_above has no digits left in the far tail.
        ties: Number of other tokens whose score equals the token's, shape [n]. vLLM counts tied
            tokens as above, so its rank is up to ties + 1 higher.
        entropy: Entropy of p in nats, shape [n].
        log_set_mass: log sum p over the set K that flattened distributions are defined on, shape
            [n]. With a declared top-k, K is the k most likely *leaders* (plus any that tie with the
            last), so that a pass over the vocabulary needs no ranking. A leader is the most likely
            token in its block (on ties, the one with the lowest id); the `leader_block` tokens in a
            block have ids `LEADER_STRIDE` apart. In vocabularies of up to 8192 tokens, each block
            is a single token and K is the top-k. If top-k is off or large, K is the whole
            vocabulary.
        log_flat_mass: log sum p^b over K for each b of `FLATTENINGS`, shape [n, 3].
        in_set: Whether the token belongs to K, boolean, shape [n].
        logit: The token's raw logit, after penalties and before temperature, shape [n].
        edge_gap: How far the token falls below the lowest logit kept by the declared sampler, in
            raw logits; 0 inside the support; shape [n].
        replay_margin: By how much another token in the support beats this token in score + noise
            under a public coin, in raw logits; 0 for the argmax; None without a coin; shape [n].
        replay_token: The token drawn by the coin, which is this token if the margin is 0; None
            without a coin; shape [n].
    """

    logprob: Floats
    max_logprob: Floats
    rank: Ints
    mass_above: Floats
    tail_mass: Floats
    ties: Ints
    entropy: Floats
    log_set_mass: Floats
    log_flat_mass: Floats
    in_set: NDArray[np.bool_]
    logit: Floats
    edge_gap: Floats
    replay_margin: Floats | None = None
    replay_token: Ints | None = None

    def __len__(self) -> int:
        return len(self.logprob)

    def at(self, places: Ints) -> "TokenStats":
        """Select the statistics of the tokens at the given indices, [m]."""
        columns: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        columns = {name: v if v is None else v[places] for name, v in columns.items()}
        return TokenStats(**columns)

    @property
    def finite(self) -> bool:
        """Whether the statistics are free of NaN; log-probs of -inf count as finite here."""
        columns = [getattr(self, f.name) for f in fields(self)]
        return not any(np.isnan(column).any() for column in columns if column is not None)
