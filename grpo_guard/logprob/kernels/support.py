"""Compute how far a token lies outside the declared support, exactly except when clearly inside.

A token's rank and the mass above it cannot decide top-p after top-k, because the engine
renormalises over the top-k. For most rows, the streaming statistics alone prove that the token is
inside; the remaining few are recomputed from whole rows of logits, a few rows at a time.
"""

import math

import torch
from torch import Tensor

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.logprob.kernels.scores import Scores
from grpo_guard.logprob.kernels.statistics import RowStats
from grpo_guard.logprob.kernels.tiled import TILE

# Memory for full rows of logits, in bytes; sorting a row with its masses takes about 40 per token.
FULL_ROWS_BYTES = 2**26
BYTES_PER_SCORE = 40


def min_p_first(spec: SamplingSpec) -> bool:
    """Whether the engine applies min-p before top-p."""
    return spec.engine == "vllm" and spec.min_p > 0


def renormalises(spec: SamplingSpec) -> bool:
    """Whether top-p applies to what the filters before it leave, rather than to everything."""
    return (spec.engine != "sglang" and spec.top_k > 0) or min_p_first(spec)


def full_rows(vocab_size: int) -> int:
    """Return the maximum number of full rows of logits to hold at a time."""
    return max(1, FULL_ROWS_BYTES // (BYTES_PER_SCORE * vocab_size))


def proven_inside(stats: RowStats, spec: SamplingSpec) -> Tensor:
    """Mark the rows whose target is provably in the support, boolean, shape [N].

    For the mass S of the set that top-p renormalises over, the bound S >= mass_above + p is used:
    the condition is exact if S is 1 and sufficient otherwise.
    """
    inside = stats.logprob > -torch.inf  # a token that cannot be drawn is outside any support
    if spec.top_k > 0:
        inside &= stats.rank < spec.top_k
    if spec.min_p > 0:
        inside &= stats.logprob >= stats.max_logprob + math.log(spec.min_p)
    if spec.top_p < 1:
        own = stats.logprob.exp()
        mass = stats.mass_above + own if renormalises(spec) else torch.ones_like(own)
        inside &= stats.mass_above < spec.top_p * mass
    return inside


def edge_gaps(
    scores: Scores,
    targets: Tensor,
    stats: RowStats,
    spec: SamplingSpec,
    *,
    mass_margin: float = 0.0,
) -> Tensor:
    """Return how far each target falls below the edge of the support, in raw logits, shape [N].

    The gap is 0 for targets inside the support. A rounding error in a candidate's mass can shift
    the edge of a nucleus by whole logits, so the edge is taken at top_p + ``mass_margin``, but no
    more than halfway from top_p to 1.
    """
    gaps = torch.zeros_like(stats.logit)
    unclear = torch.nonzero(~proven_inside(stats, spec))[:, 0]
    top_p = spec.top_p + min(mass_margin, (1 - spec.top_p) / 2)
    for rows in torch.split(unclear, full_rows(scores.vocab_size)):
        z = whole_rows(scores.rows(rows), rows)
        own = stats.logit[rows] / spec.temperature
        # As in the streaming pass, a target that is itself the edge must not fall below it by
        # rounding.
        z[torch.arange(len(rows), device=z.device), targets[rows]] = own
        gap = (support_edge(z, spec, top_p) - own).clamp_min(0.0) * spec.temperature
        gaps[rows] = torch.where(own == -torch.inf, torch.inf, gap)  # -inf - -inf is NaN
    return gaps


def whole_rows(scores: Scores, rows: Tensor) -> Tensor:
    """Return all scores of a few rows, [R, V], computed in tiles because bf16 weights are upcast
    tile by tile."""
    whole = torch.empty(len(rows), scores.vocab_size, device=rows.device)
    for start in range(0, scores.vocab_size, TILE):
        part = whole[:, start : start + TILE]
        z = scores.tile(start, start + part.shape[-1], out=torch.empty_like(part))
        part.copy_(z)
    return whole


def support_edge(z: Tensor, spec: SamplingSpec, top_p: float) -> Tensor:
    """Return the lowest score (logit / temperature) kept by the sampler: [R, V] -> [R].

    Every filter keeps a set of top tokens, so each amounts to a threshold, and together they amount
    to the highest. Min-p's threshold can lie between the scores of two tokens.
    """
    edge = torch.full(z.shape[:-1], -torch.inf, device=z.device)
    k = spec.top_k if 0 < spec.top_k < z.shape[-1] else z.shape[-1]
    needs_ranking = top_p < 1 or k < z.shape[-1]
    if not needs_ranking:
        ranked = z.amax(-1, keepdim=True)
    elif spec.engine == "sglang" and top_p < 1:
        ranked = z.sort(-1, descending=True).values  # its top-p applies to the whole distribution
    else:
        ranked = z.topk(k, -1).values
    if k < z.shape[-1]:
        edge = torch.maximum(edge, ranked[:, k - 1])
    if spec.min_p > 0:
        edge = torch.maximum(edge, ranked[:, 0] + math.log(spec.min_p))
    if top_p < 1:
        eligible = torch.ones_like(ranked, dtype=torch.bool)
        if min_p_first(spec):
            eligible = ranked >= ranked[:, :1] + math.log(spec.min_p)
        weights = torch.where(eligible, (ranked - ranked[:, :1]).double().exp(), 0.0)
        mass_above = weights.cumsum(-1) - weights
        mass = weights.sum(-1, keepdim=True)
        if k < z.shape[-1] and ranked.shape[-1] == k:
            # Engines also keep tokens that tie with the k-th, and renormalise over them as well.
            tied = (z >= ranked[:, -1:]).sum(-1, keepdim=True) - k
            mass = mass + tied * weights[:, -1:]
        kept = eligible & (mass_above < top_p * mass)
        edge = torch.maximum(edge, torch.where(kept, ranked, torch.inf).amin(-1))
    return edge
