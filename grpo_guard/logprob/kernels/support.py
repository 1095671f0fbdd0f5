"""How far a token lies outside the declared support, computed exactly unless clearly inside.

(rank, mass above) cannot decide top-p after top-k, because the engine renormalises over the top-k.
Most rows are proven inside by the streaming statistics alone; the few others are recomputed with
their whole row of logits, a few rows at a time.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.logprob.kernels.scores import Scores
from grpo_guard.logprob.kernels.statistics import RowStats
from grpo_guard.logprob.kernels.tiled import TILE

# Memory for rows of full logits; sorting a row with its masses takes about 40 bytes a token.
FULL_ROWS_BYTES = 2**26
BYTES_PER_SCORE = 40


def full_rows(vocab_size: int) -> int:
    """How many rows of full logits may exist at a time."""
    return max(1, FULL_ROWS_BYTES // (BYTES_PER_SCORE * vocab_size))


def proven_inside(stats: RowStats, spec: SamplingSpec) -> Tensor:
    """Rows whose target is certainly in the support, boolean, shape [N].

    Uses S >= mass_above + p for the mass S of the set that top-p renormalises over: exact if S is
    1, sufficient otherwise.
    """
    inside = stats.logprob > -torch.inf  # a token that cannot be drawn is outside any support
    if spec.top_k > 0:
        inside &= stats.rank < spec.top_k
    if spec.min_p > 0:
        inside &= stats.logprob >= stats.max_logprob + math.log(spec.min_p)
    if spec.top_p < 1:
        renormalised = (spec.engine != "sglang" and spec.top_k > 0) or (
            spec.engine == "vllm" and spec.min_p > 0
        )
        own = stats.logprob.exp()
        mass = stats.mass_above + own if renormalised else torch.ones_like(own)
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
    """Raw logits by which each target lies below the support's edge, shape [N]; 0 inside.

    A nucleus's edge jumps by whole logits when a candidate's mass moves by a rounding error, so the
    edge is taken at top_p + ``mass_margin``, but no more than half way to 1.
    """
    gaps = torch.zeros_like(stats.logit)
    unclear = torch.nonzero(~proven_inside(stats, spec))[:, 0]
    top_p = spec.top_p + min(mass_margin, (1 - spec.top_p) / 2)
    for rows in torch.split(unclear, full_rows(scores.vocab_size)):
        z = whole_rows(scores.rows(rows), rows)
        own = stats.logit[rows] / spec.temperature
        # As in the streaming pass: a target that is itself the edge must not miss it by rounding.
        z[torch.arange(len(rows), device=z.device), targets[rows]] = own
        gap = (support_edge(z, spec, top_p) - own).clamp_min(0.0) * spec.temperature
        gaps[rows] = torch.where(own == -torch.inf, torch.inf, gap)  # -inf - -inf is NaN
    return gaps


def whole_rows(scores: Scores, rows: Tensor) -> Tensor:
    """All scores of a few rows, [R, V]; by tiles, because bf16 weights are upcast per tile."""
    whole = torch.empty(len(rows), scores.vocab_size, device=rows.device)
    for start in range(0, scores.vocab_size, TILE):
        part = whole[:, start : start + TILE]
        z = scores.tile(start, start + part.shape[-1], out=torch.empty_like(part))
        part.copy_(z)
    return whole


def support_edge(z: Tensor, spec: SamplingSpec, top_p: float) -> Tensor:
    """The least score that the sampler keeps; scores are logits / temperature: [R, V] -> [R].

    Under min-p that may lie between two tokens; under the others it is the lowest one kept.

    Every filter keeps a top set, so a support is a threshold, and thresholds combine by maximum.
    """
    edge = torch.full(z.shape[:-1], -torch.inf, device=z.device)
    k = spec.top_k if 0 < spec.top_k < z.shape[-1] else z.shape[-1]
    needs_ranking = top_p < 1 or k < z.shape[-1]
    if not needs_ranking:
        ranked = z.amax(-1, keepdim=True)
    elif spec.engine == "sglang" and top_p < 1:
        ranked = z.sort(-1, descending=True).values  # its top-p counts the whole distribution
    else:
        ranked = z.topk(k, -1).values
    if k < z.shape[-1]:
        edge = torch.maximum(edge, ranked[:, k - 1])
    if spec.min_p > 0:
        edge = torch.maximum(edge, ranked[:, 0] + math.log(spec.min_p))
    if top_p < 1:
        eligible = torch.ones_like(ranked, dtype=torch.bool)
        if spec.engine == "vllm" and spec.min_p > 0:
            eligible = ranked >= ranked[:, :1] + math.log(spec.min_p)
        weights = torch.where(eligible, (ranked - ranked[:, :1]).double().exp(), 0.0)
        mass_above = weights.cumsum(-1) - weights
        mass = weights.sum(-1, keepdim=True)
        if k < z.shape[-1] and ranked.shape[-1] == k:
            # Engines keep tokens that tie with the k-th, and renormalise over them as well.
            tied = (z >= ranked[:, -1:]).sum(-1, keepdim=True) - k
            mass = mass + tied * weights[:, -1:]
        kept = eligible & (mass_above < top_p * mass)
        edge = torch.maximum(edge, torch.where(kept, ranked, torch.inf).amin(-1))
    return edge
