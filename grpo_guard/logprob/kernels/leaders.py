"""The set K of tokens over which a flattened distribution is normalised.

The vocabulary is divided into blocks, and the most likely token in a block is its leader. K
contains the most likely leaders.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from grpo_guard.logprob.stats import FLATTENINGS, LEADER_STRIDE, leader_block


def leads(leaders: Tensor, edge: Tensor, z_target: Tensor, targets: Tensor, block: int) -> Tensor:
    """Mark the targets that score as high as their block's leader if that leader is in K, [N]."""
    index = targets // (block * LEADER_STRIDE) * LEADER_STRIDE + targets % LEADER_STRIDE
    own = leaders.gather(-1, index[:, None])[:, 0]
    return (own == z_target) & (z_target >= edge) & (z_target > -torch.inf)


def without_later_equals(
    in_set: Tensor,
    ties: Tensor,
    z_target: Tensor,
    targets: Tensor,
    vocab_size: int,
    score_of: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """Among equal scores in a block, keep only the lowest id: the normalisers count only one.

    Otherwise honest tokens would be penalised for ties, which are common in bf16 logits.
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


def set_masses(leaders: Tensor, ranked: Tensor, log_normaliser: Tensor) -> tuple[Tensor, Tensor]:
    """Return log sum p and log sum p^b over the set K, shapes [N] and [N, 3].

    K consists of the ``ranked`` leaders plus any that tie with the last of them.
    """
    edge = ranked[:, -1:]
    # Leaders that tie with the last ranked one belong to K too; a score of -inf never does.
    # Counted in parts, because counting booleans first converts them to integers.
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
