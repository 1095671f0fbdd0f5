"""One streaming pass over vocabulary tiles: the [tokens, vocabulary] logits never exist.

Per tile the partial sums are centred on the tile's own maximum and merged as in an online softmax
(Milakov and Gimelshein, arXiv 1805.02867).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from grpo_guard.logprob.kernels.head import Head
from grpo_guard.logprob.kernels.penalty import RepetitionPenalty
from grpo_guard.logprob.stats import FLATTENINGS, LARGEST_TOP_K

# A tile of 1024 columns stays in a CPU's cache beside the rows; GPUs want larger products.
CPU_TILE = 1024
CUDA_TILE = 8192


class RowStats(NamedTuple):
    """Statistics of N rows, fp32 where not said otherwise; `TokenStats` says what they mean."""

    logprob: Tensor
    max_logprob: Tensor
    rank: Tensor  # int64
    mass_above: Tensor
    tail_mass: Tensor
    entropy: Tensor
    log_set_mass: Tensor
    log_flat_mass: Tensor  # [N, 3]
    in_set: Tensor  # boolean
    logit: Tensor


class _Partial(NamedTuple):
    """Sums over the tokens seen so far, each relative to the largest score ``m`` among them."""

    m: Tensor
    total: Tensor  # sum e, where e = exp(z - m)
    above: Tensor  # sum e over z > z_target
    below: Tensor  # sum e over z <= z_target
    weighted: Tensor  # sum (z - m) e
    half: Tensor  # sum e^0.5
    three_quarters: Tensor  # sum e^0.75
    rank: Tensor


def row_stats(
    hidden: Tensor,
    head: Head,
    targets: Tensor,
    *,
    temperature: float,
    top_k: int = 0,
    penalty: RepetitionPenalty | None = None,
    tile: int | None = None,
) -> RowStats:
    """Statistics of each row's target token.

    Args:
        hidden: Final hidden states, fp32, shape [N, H].
        head: The output head.
        targets: Token ids, int64, shape [N].
        temperature: > 0.
        top_k: The declared one; 0 = off.
        penalty: Repetition penalty whose rows are these N rows.
        tile: Tokens per tile; None = by device.
    """
    tile = tile or (CUDA_TILE if hidden.is_cuda else CPU_TILE)
    logit = head.target_logits(hidden, targets)
    if penalty is not None:
        logit = penalty.apply_to_targets(logit, targets)
    z_target = logit / temperature
    k = min(top_k, head.vocab_size) if top_k <= LARGEST_TOP_K else 0
    ranked = z_target.new_empty(len(targets), 0)
    partial: _Partial | None = None
    for start in range(0, head.vocab_size, tile):
        stop = min(start + tile, head.vocab_size)
        z = head.logits(hidden, start, stop)
        if penalty is not None:
            z = penalty.apply(z, start, stop)
        z /= temperature
        # The target's score was computed by another route and may differ in the last bit; put the
        # same number into its column, so that a token can never outrank itself.
        rows = torch.nonzero((targets >= start) & (targets < stop))[:, 0]
        z[rows, targets[rows] - start] = z_target[rows]
        if k:
            ranked = torch.cat([ranked, z], -1)
            ranked = ranked.topk(min(k, ranked.shape[-1]), -1).values
        part = _tile(z, z_target)
        partial = part if partial is None else _merge(partial, part)
    assert partial is not None
    return _finish(partial, z_target, logit, ranked, head.vocab_size)


def _tile(z: Tensor, z_target: Tensor) -> _Partial:
    m = z.amax(-1)
    d = z - torch.where(m == -torch.inf, 0.0, m)[:, None]  # a tile of nothing but -inf is empty
    e = d.exp()
    above = z > z_target[:, None]
    e_above = torch.where(above, e, 0.0).sum(-1)
    # The tail is summed by itself: total - above would lose a tail of 1e-8 to rounding.
    e_below = torch.where(above, 0.0, e).sum(-1)
    root = e.sqrt()
    return _Partial(
        m,
        e_above + e_below,
        e_above,
        e_below,
        torch.where(e > 0, d * e, 0.0).sum(-1),  # -inf * 0 is NaN; the limit is 0
        root.sum(-1),
        (root * root.sqrt()).sum(-1),
        above.sum(-1),
    )


def _merge(a: _Partial, b: _Partial) -> _Partial:
    m = torch.maximum(a.m, b.m)

    def rescaled(p: _Partial) -> _Partial:
        d = torch.where(p.m == -torch.inf, 0.0, p.m - m)  # an empty tile has nothing to move
        f = torch.where(p.m == -torch.inf, 0.0, d.exp())
        return _Partial(
            m,
            p.total * f,
            p.above * f,
            p.below * f,
            (p.weighted + d * p.total) * f,
            p.half * f.sqrt(),
            p.three_quarters * f**0.75,
            p.rank,
        )

    x, y = rescaled(a), rescaled(b)
    return _Partial(m, *(u + v for u, v in zip(x[1:], y[1:], strict=True)))


def _finish(
    p: _Partial, z_target: Tensor, logit: Tensor, ranked: Tensor, vocab_size: int
) -> RowStats:
    log_total = p.total.log()
    if ranked.shape[-1]:
        log_p = ranked - (p.m + log_total)[:, None]
        set_mass = log_p.logsumexp(-1)
        flat = torch.stack([(b * log_p).logsumexp(-1) for b in FLATTENINGS], -1)
        in_set = p.rank < ranked.shape[-1]
    else:
        set_mass = torch.zeros_like(log_total)
        uniform = torch.full_like(log_total, math.log(vocab_size))
        sums = [p.half.log() - 0.5 * log_total, p.three_quarters.log() - 0.75 * log_total]
        flat = torch.stack([uniform, *sums], -1)
        in_set = torch.ones_like(p.rank, dtype=torch.bool)
    return RowStats(
        logprob=z_target - p.m - log_total,
        max_logprob=-log_total,
        rank=p.rank,
        mass_above=p.above / p.total,
        tail_mass=p.below / p.total,
        entropy=log_total - p.weighted / p.total,
        log_set_mass=set_mass,
        log_flat_mass=flat,
        in_set=in_set,
        logit=logit,
    )
