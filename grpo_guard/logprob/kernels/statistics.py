"""All per-token statistics in one place: how they are summed over a tile, merged and finalised.

* `tile_sums` computes the sums over part of the vocabulary. `epilogue.py` compiles the same
  function with torch, and `triton_kernels.py` reimplements it for GPUs.
* `merged` combines the parts. As in an online softmax (Milakov and Gimelshein, arXiv 1805.02867),
  each part is stored relative to its own largest score.
* `finish` turns the sums over the whole vocabulary into `RowStats`, whose fields are named as in
  `TokenStats`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

import torch
from torch import Tensor

from grpo_guard.logprob.kernels.leaders import leads, set_masses, without_later_equals
from grpo_guard.logprob.stats import LEADER_STRIDE, leader_block


class Partial(NamedTuple):
    """Per-row sums over the tokens seen so far, with e = exp(z - m); shape [N] each."""

    m: Tensor  # the largest score
    above: Tensor  # sum e over z > z_target
    below: Tensor  # sum e over z <= z_target; total - above would lose a tail of 1e-8 to rounding
    weighted: Tensor  # sum (z - m) e
    half: Tensor  # sum e^0.5, or 0 if not requested
    three_quarters: Tensor  # sum e^0.75, or 0 if not requested
    rank: Tensor  # int64: number of tokens with z > z_target
    ties: Tensor  # int64: number with z == z_target, including the target itself unless -inf

    @property
    def total(self) -> Tensor:
        return self.above + self.below


COUNTS: Final = ("rank", "ties")
"""The fields of `Partial` that count tokens, which come last."""
SUMS: Final = len(Partial._fields) - len(COUNTS)
"""Number of the other fields."""


def tile_sums(z: Tensor, z_target: Tensor, block: int, flat: bool) -> tuple[Partial, Tensor]:
    """Compute the sums over one tile, plus the largest score in each block of tokens.

    Args:
        z: Scores, with the target's own column exactly equal to ``z_target`` and padded with -inf;
            fp32, shape [N, W], W a multiple of ``block * LEADER_STRIDE``.
        z_target: Score of each row's target, shape [N].
        block: Number of tokens per leader.
        flat: Whether to compute the sums of e^0.5 and e^0.75.

    Returns:
        The sums, and the leaders' scores, shape [N, W / block].
    """
    m = z.amax(-1)
    d = z - torch.where(m == -torch.inf, 0.0, m)[:, None]  # an all -inf tile counts as empty
    e = d.exp()
    above = z > z_target[:, None]
    de = torch.where(e > 0, d * e, 0.0)  # -inf * 0 is NaN; the limit is 0
    equal = (z == z_target[:, None]) & (z > -torch.inf)
    none = torch.zeros_like(m)
    sums = Partial(
        m=m,
        above=torch.where(above, e, 0.0).sum(-1),
        below=torch.where(above, 0.0, e).sum(-1),
        weighted=de.sum(-1),
        half=(0.5 * d).exp().sum(-1) if flat else none,
        three_quarters=(0.75 * d).exp().sum(-1) if flat else none,
        rank=above.sum(-1),
        ties=equal.sum(-1),
    )
    blocks = z.view(z.shape[0], -1, block, LEADER_STRIDE)
    return sums, blocks.amax(2).view(z.shape[0], -1)


def merged(parts: Partial) -> Partial:
    """Merge the sums over P parts of the vocabulary, [P, N] -> [N]."""
    m = parts.m.amax(0)
    empty = parts.m == -torch.inf  # only -inf so far, so nothing to rescale
    d = torch.where(empty, 0.0, parts.m - m)
    f = torch.where(empty, 0.0, d.exp())
    # A part far below the largest score contributes nothing, and with d = -inf, d * 0 would be NaN.
    d = torch.where(f > 0, d, 0.0)
    return Partial(
        m,
        (parts.above * f).sum(0),
        (parts.below * f).sum(0),
        ((parts.weighted + d * parts.total) * f).sum(0),
        (parts.half * f.sqrt()).sum(0),
        (parts.three_quarters * f**0.75).sum(0),
        parts.rank.sum(0),
        parts.ties.sum(0),
    )


class RowStats(NamedTuple):
    """Statistics of N rows, fp32 unless noted; documented in `TokenStats`."""

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
    """Compute the statistics of N rows from their sums.

    Args:
        sums: Sums over the whole vocabulary.
        z_target, targets: Score and id of each row's target, shape [N].
        temperature: Temperature that the scores were divided by.
        vocab_size: The size V of the vocabulary.
        leaders: Each block's largest score, shape [N, leader_count(V)], or None if K is the whole
            vocabulary.
        top_k: The declared top-k.
        score_of: Scores one token in each of a few rows: (rows [R], tokens [R]) -> [R].
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
        in_set = leads(leaders, ranked[:, -1], z_target, targets, leader_block(vocab_size))
        in_set = without_later_equals(in_set, sums.ties, z_target, targets, vocab_size, score_of)
        set_mass, flat = set_masses(leaders, ranked, log_normaliser)
    return RowStats(
        logprob=(z_target - sums.m) - log_total,  # at low temperatures both scores are large
        max_logprob=-log_total,
        rank=sums.rank,
        mass_above=sums.above / sums.total,
        tail_mass=sums.below / sums.total,
        ties=(sums.ties - 1).clamp_min(0),  # a target at -inf does not count as its own tie
        entropy=log_total - sums.weighted / sums.total,
        log_set_mass=set_mass,
        log_flat_mass=flat,
        in_set=in_set,
        logit=z_target * temperature,
    )
