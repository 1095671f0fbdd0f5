"""Token statistics from only the most likely tokens per position, as listed by serving engines.

For each position, an engine lists the log-probs at temperature 1 of the L most likely tokens and of
the actual token. For the tokens below the list, only the total mass is known, so every number here
that depends on their individual values is a bound, on the side that keeps honest p-values valid:

* Differences of log-probs at T = 1 are differences of raw logits, so everything about the declared
  top-k (k <= L) is exact at every temperature: the support, its edge, the set K of the flattened
  distributions and their normalisers relative to K.
* The total of exp(logit / T) over the vocabulary is known at T = 1 and bounded at other
  temperatures: the unlisted mass r is spread over N = V - L tokens of at most c each, where c is
  the lowest listed probability. So sum p^a lies between N (r/N)^a and r c^(a-1) for a = 1/T
  (Jensen, and p <= c; the other way round for a < 1).

K can be cut off at the end of the list: a factor of the e-process in `evidence.py` is Q/P on K and
1 outside, and its mean under honest sampling is at most 1 for any K that depends on the prefix
alone, as long as the part of K in the support is a top set of K. The L listed tokens depend only on
the prefix; a token listed only because it was actually sampled is not counted in K.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.logprob.stats import FLATTENINGS, Floats, Ints, TokenStats

# Token id -> (log-prob at T = 1, rank counted from 1).
Position = Mapping[int, tuple[float, int]]

# Tolerance for the sum of a list's probabilities, which come from fp32 log-probs. Underestimating
# the unlisted mass would make honest tokens look less likely than they are.
SLACK = 1e-5
# Stands in for the raw logits, whose level the engine does not report. Under profiles with
# ``ulps``, margins grow with the logit; a value below 32 does not widen those of the built-in
# profiles.
ASSUMED_LOGIT: Final = 31.0


class TopListError(ValueError):
    """Raised when the engine's answer is not a list of the most likely tokens with log-probs."""


@dataclass(frozen=True, slots=True)
class TopList:
    """The engine's lists for the n positions of a completion."""

    top: Floats  # log-probs at T = 1 of the L most likely tokens, in descending order, [n, L]
    own: Floats  # log-prob of the actual token, [n]
    listed: NDArray[np.bool_]  # whether the actual token is among the L most likely, [n]
    own_rank: Ints
    """The engine's rank for the actual token, used if it is unlisted: the number of tokens at least
    as likely, including itself; [n]."""
    vocab_size: int

    @classmethod
    def of(
        cls,
        positions: Sequence[Position],
        tokens: Sequence[int],
        *,
        length: int,
        vocab_size: int,
    ) -> "TopList":
        """Parse the engine's answer: each position's L = ``length`` listed tokens, and its token.
        Raises TopListError for others, or numbers that are not log-probs (``raw_logits``)."""
        if len(positions) != len(tokens):
            raise TopListError(f"expected {len(tokens)} positions, got {len(positions)}")
        top, own, listed, ranks = [], [], [], []
        for i, (position, token) in enumerate(zip(positions, tokens, strict=True)):
            if token not in position:
                raise TopListError(f"position {i}: expected token {token}, got others only")
            inside = len(position) <= length
            row = [value for key, (value, _) in position.items() if inside or key != token]
            if len(row) != length:
                raise TopListError(f"position {i}: expected {length} log-probs, got {len(row)}")
            top.append(row)
            own.append(position[token][0])
            listed.append(inside)
            ranks.append(position[token][1])
        table = cls(
            -np.sort(-np.array(top, dtype=np.float64).reshape(-1, length), axis=-1),
            np.array(own, dtype=np.float64),
            np.array(listed, dtype=np.bool_),
            np.array(ranks, dtype=np.int64),
            vocab_size,
        )
        if (np.exp(table.top).sum(-1) > 1 + 1e-3).any():  # NaN passes, as it comes from the model
            raise TopListError("expected log-probs, got numbers whose exponentials sum to over 1")
        return table


@dataclass(frozen=True, slots=True)
class _Totals:
    """Weights exp((log-prob - the row's largest) / T) of tokens, and bounds on their totals."""

    weights: Floats  # weights of the listed tokens, [n, L]
    own: Floats  # weight of the actual token, [n]
    least: Floats  # lower bound on the total over the vocabulary, [n]
    most: Floats  # upper bound on that total, equal to ``least`` at T = 1, [n]
    rest_most: Floats  # upper bound on the unlisted part of the total, [n]

    @classmethod
    def of(cls, table: TopList, temperature: float) -> "_Totals":
        top, peak, a = table.top, table.top[:, 0], 1.0 / temperature
        weights = np.exp((top - peak[:, None]) * a)
        unlisted = table.vocab_size - top.shape[-1]
        least, most = _unlisted_mass(top, unlisted)
        with np.errstate(divide="ignore", invalid="ignore"):
            packed = [np.log(r) + (a - 1) * top[:, -1] - a * peak for r in (least, most)]
            spread = (
                [a * np.log(r / unlisted) + math.log(unlisted) - a * peak for r in (least, most)]
                if unlisted
                else packed
            )
        low, high = (spread[0], packed[1]) if a >= 1 else (packed[0], spread[1])
        rest_least = np.where(least > 0, np.exp(low), 0.0)
        rest_most = np.where(most > 0, np.exp(high), 0.0)
        listed = weights.sum(-1)
        exact = np.exp(-peak)
        return cls(
            weights,
            np.exp((table.own - peak) * a),
            exact if temperature == 1 else listed + rest_least,
            exact if temperature == 1 else listed + rest_most,
            rest_most,
        )


def _unlisted_mass(top: Floats, unlisted: int) -> tuple[Floats, Floats]:
    """Return a lower and an upper bound on the unlisted tokens' total probability at T = 1, [n]."""
    missing = 1.0 - np.exp(top).sum(-1)
    most = np.clip(np.minimum(missing + SLACK, unlisted * np.exp(top[:, -1])), 0.0, 1.0)
    return np.clip(missing - SLACK, 0.0, most), most


def top_stats(table: TopList, spec: SamplingSpec, *, mass_margin: float) -> TokenStats:
    """Compute the statistics of each position's actual token; `VLLMScorer` documents the fields.

    Requires L >= ``spec.top_k`` >= 1, no repetition penalty, and no top-p under sglang.
    """
    top, own = table.top, table.own
    total = _Totals.of(table, spec.temperature)
    log_most = np.log(total.most)
    above = top > own[:, None]
    n_above = above.sum(-1)
    # Two upper bounds on the mass of all tokens no likelier than the actual one: their sum, which
    # has no digits left in the far tail, and their number times the largest weight among them.
    by_sum = (np.where(above, 0.0, total.weights).sum(-1) + total.rest_most) / total.most
    by_count = (table.vocab_size - n_above) * total.own / total.least
    kth = top[:, spec.top_k - 1, None]
    members = np.where((top >= kth) & (top > -np.inf), top - top[:, :1], -np.inf)
    members = members / spec.temperature
    logprob = (own - top[:, 0]) / spec.temperature - log_most
    unclear = np.isnan(top).any(-1) | np.isnan(own)
    return TokenStats(
        logprob=np.where(unclear, np.nan, logprob),
        max_logprob=-log_most,
        rank=np.where(own < top[:, -1], np.maximum(table.own_rank - 1, n_above), n_above),
        mass_above=np.where(above, total.weights, 0.0).sum(-1) / total.most,
        tail_mass=np.minimum(1.0, np.minimum(by_sum, by_count)),
        ties=np.maximum(0, (top == own[:, None]).sum(-1) - table.listed),
        entropy=np.full(len(own), math.log(table.vocab_size)),
        log_set_mass=np.logaddexp.reduce(members, axis=-1) - log_most,
        log_flat_mass=_log_flat_mass(members) - np.multiply.outer(log_most, FLATTENINGS),
        in_set=table.listed & (own >= kth[:, 0]) & (own > -np.inf),
        logit=np.full(len(own), ASSUMED_LOGIT),
        edge_gap=np.maximum(0.0, _edge(table, spec, total, mass_margin) - own),
    )


def _log_flat_mass(members: Floats) -> Floats:
    """Return log sum p^b over the members of K, [n, L] -> [n, 3]; -inf marks non-members."""
    inside = members > -np.inf
    finite = np.where(inside, members, 0.0)
    sums = [np.exp(b * finite).sum(-1, where=inside) for b in FLATTENINGS]
    # Only NaN can leave K without members, and then nothing is known.
    return np.stack([np.log(np.where(s > 0, s, np.nan)) for s in sums], axis=-1)


def _edge(table: TopList, spec: SamplingSpec, total: _Totals, mass_margin: float) -> Floats:
    """Return the lowest log-prob at T = 1 kept by the declared sampler, shape [n]."""
    top, k = table.top, spec.top_k
    in_top_k = top >= top[:, k - 1, None]
    scaled = (top - top[:, :1]) / spec.temperature
    min_p = scaled >= (math.log(spec.min_p) if spec.min_p > 0 else -math.inf)
    kept = in_top_k & min_p & (top > -np.inf)
    if spec.top_p < 1:
        eligible = in_top_k & min_p if spec.engine == "vllm" else in_top_k
        # Tokens tied with the k-th may continue below the list. The mass counted by top-p is then
        # larger than listed and the nucleus wider: assume as many ties as the unlisted mass allows.
        cut = eligible[:, -1] & (table.vocab_size > top.shape[-1])
        weights = np.where(eligible, total.weights, 0.0)
        tied = np.where(cut, _most_tied(table, total), 0.0)
        whole = (weights.sum(-1) + tied)[:, None]
        top_p = spec.top_p + min(mass_margin, (1 - spec.top_p) / 2)
        kept &= np.cumsum(weights, -1) - weights < top_p * whole
    edge: Floats = np.where(kept, top, np.inf).min(-1)
    return np.where(np.isnan(top).any(-1), np.nan, edge)


def _most_tied(table: TopList, total: _Totals) -> Floats:
    """Return the most that unlisted tokens tied with the last listed one can weigh, shape [n]."""
    unlisted = table.vocab_size - table.top.shape[-1]
    _, mass = _unlisted_mass(table.top, unlisted)
    each = np.exp(table.top[:, -1])
    count = np.minimum(np.divide(mass, each, out=np.zeros_like(mass), where=each > 0), unlisted)
    tied: Floats = count * total.weights[:, -1]
    return tied
