"""Turn the sums over the whole vocabulary into the statistics of each row."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from grpo_guard.logprob.kernels.partial import Partial
from grpo_guard.logprob.stats import FLATTENINGS, LEADER_STRIDE, leader_block


class RowStats(NamedTuple):
    """Statistics of N rows, fp32 unless noted; `TokenStats` documents them."""

    logprob: Tensor
    max_logprob: Tensor
    rank: Tensor  # int64
    mass_above: Tensor
    tail_mass: Tensor
    ties: Tensor  # int64
    entropy: Tensor
    log_set_mass: Tensor
    log_flat_mass: Tensor  # [N, 3]
    in_set: Tensor  # boolean
    logit: Tensor


def finish(
    sums: Partial,
    *,
    z_target: Tensor,
    targets: Tensor,
    temperature: float,
    vocab_size: int,
    leaders: Tensor | None,
    top_k: int,
    score_of: Callable[[Tensor, Tensor], Tensor],
) -> RowStats:
    """Compute the statistics of N rows.

    Args:
        sums: Over the whole vocabulary.
        z_target: Score of each row's target, shape [N].
        targets: Token ids, shape [N].
        temperature: Temperature of the scores.
        vocab_size: V.
        leaders: Each block's largest score, shape [N, leader_count(V)]; None = K is the whole
            vocabulary.
        top_k: The declared top-k.
        score_of: Scores one token in each of a few rows, (rows [R], tokens [R]) -> [R].
    """
    log_total = sums.total.log()
    log_normaliser = sums.m + log_total
    if leaders is None:
        set_mass = torch.zeros_like(log_total)
        uniform = torch.full_like(log_total, math.log(vocab_size))
        roots = [
            sums.half.log() - 0.5 * log_total,
            sums.three_quarters.log() - 0.75 * log_total,
        ]
        flat = torch.stack([uniform, *roots], -1)
        in_set = torch.ones_like(sums.rank, dtype=torch.bool)
    else:
        ranked = leaders.topk(min(top_k, leaders.shape[-1]), -1).values
        in_set = _leads(leaders, ranked[:, -1], z_target, targets, leader_block(vocab_size))
        in_set = _without_later_equals(in_set, sums.ties, z_target, targets, vocab_size, score_of)
        set_mass, flat = _set_masses(leaders, ranked, log_normaliser)
    return RowStats(
        logprob=(z_target - sums.m) - log_total,  # at low temperatures both are large
        max_logprob=-log_total,
        rank=sums.rank,
        mass_above=sums.above / sums.total,
        tail_mass=sums.below / sums.total,
        ties=(sums.ties - 1).clamp_min(0),  # a target at -inf is not counted as its own tie
        entropy=log_total - sums.weighted / sums.total,
        log_set_mass=set_mass,
        log_flat_mass=flat,
        in_set=in_set,
        logit=z_target * temperature,
    )


def _leads(leaders: Tensor, edge: Tensor, z_target: Tensor, targets: Tensor, block: int) -> Tensor:
    """Whether each target has the score of a leader in K, boolean, [N]."""
    index = targets // (block * LEADER_STRIDE) * LEADER_STRIDE + targets % LEADER_STRIDE
    own = leaders.gather(-1, index[:, None])[:, 0]
    return (own == z_target) & (z_target >= edge) & (z_target > -torch.inf)


def _without_later_equals(
    in_set: Tensor,
    ties: Tensor,
    z_target: Tensor,
    targets: Tensor,
    vocab_size: int,
    score_of: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """Keep only the lowest id among equals in one block, as the normalisers count only one.

    Otherwise honest tokens that tie, which is common in bf16 logits, would pay for each other.
    """
    block = leader_block(vocab_size)
    rows = torch.nonzero(in_set & (ties > 1))[:, 0]
    if block == 1 or not len(rows):
        return in_set
    mine = targets[rows]
    mate = mine // (block * LEADER_STRIDE) * (block * LEADER_STRIDE) + mine % LEADER_STRIDE
    for _ in range(block):
        lower = mate < mine
        equal = score_of(rows, torch.where(lower, mate, mine)) == z_target[rows]
        in_set[rows] &= ~(lower & equal)
        mate = mate + LEADER_STRIDE
    return in_set


def _set_masses(leaders: Tensor, ranked: Tensor, log_normaliser: Tensor) -> tuple[Tensor, Tensor]:
    """log sum p and log sum p^b over the leaders down to the last ranked one, [N] and [N, 3]."""
    edge = ranked[:, -1:]
    # Leaders that tie with the last one belong to the set too; -inf is never a member.
    # In parts, because counting booleans first converts them to integers.
    at_least = [
        (part >= low).sum(-1, keepdim=True)
        for part, low in zip(torch.split(leaders, 64), torch.split(edge, 64), strict=True)
    ]
    tied = (torch.cat(at_least) - ranked.shape[-1]).clamp_min(0)
    log_p = torch.cat([ranked, edge], -1) - log_normaliser[:, None]
    log_count = torch.cat([torch.zeros_like(ranked), tied.to(ranked.dtype).log()], -1)
    member = log_p > -torch.inf
    sums = [
        torch.where(member, b * log_p + log_count, -torch.inf).logsumexp(-1)
        for b in (1.0, *FLATTENINGS)
    ]
    return sums[0], torch.stack(sums[1:], -1)
