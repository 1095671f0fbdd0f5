"""All per-token statistics in one place: how they are summed over a tile, merged and finalised.

* `tile_sums` computes the sums over part of the vocabulary. `tiled.py` compiles the same
  function with torch, and `triton_kernels.py` reimplements it for GPUs.
* `merged` combines the parts. As in an online softmax (Milakov and Gimelshein, arXiv 1805.02867),
  each part is stored relative to its own largest score.
* `finish` turns the sums over the whole vocabulary into `RowStats`, whose fields are named as in
  `TokenStats`.
"""

import math
from collections.abc import Callable
from typing import Final, NamedTuple

import torch
from torch import Tensor

from grpo_guard.logprob.stats import FLATTENINGS, LEADER_STRIDE, leader_block


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


COUNTS: Final = ("rank", "ties")  # the fields of `Partial` that count tokens, which come last
SUMS: Final = len(Partial._fields) - len(COUNTS)  # number of the other fields


def tile_sums(z: Tensor, z_target: Tensor, block: int, flat: bool) -> tuple[Partial, Tensor]:
    """Compute the sums over one tile, plus the leaders' scores, shape [N, W / block].

    Args:
        z: Scores, with the target's own column exactly equal to ``z_target`` and padded with -inf;
            fp32, shape [N, W], W a multiple of ``block * LEADER_STRIDE``.
        z_target, block: Score of each row's target, shape [N]; number of tokens per leader.
        flat: Whether to compute the sums of e^0.5 and e^0.75.
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


def leads(leaders: Tensor, edge: Tensor, z_target: Tensor, targets: Tensor, block: int) -> Tensor:
    """Mark the targets that score as high as their block's leader if that leader is in K, [N].

    `TokenStats` explains leaders and K, the set over which flattened distributions are normalised.
    """
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


MOST_PARTS: Final = 16


class PartialSums:
    """Collects the sums of successive parts and merges them a few at a time.

    The sums are written into preallocated tensors shaped like the column ``like``, fp32, [N]: small
    results that outlive large temporaries would fragment the heap and make it grow by hundreds of
    MB.
    """

    def __init__(self, like: Tensor) -> None:
        self._count = 0
        self._columns = Partial(
            *(
                like.new_empty(
                    MOST_PARTS, len(like), dtype=torch.int64 if name in COUNTS else like.dtype
                )
                for name in Partial._fields
            )
        )

    def add(self, part: Partial) -> None:
        if self._count == MOST_PARTS:
            whole, self._count = self.total(), 0
            self.add(whole)
        for column, values in zip(self._columns, part, strict=True):
            column[self._count] = values
        self._count += 1

    def total(self) -> Partial:
        return merged(Partial(*(column[: self._count] for column in self._columns)))


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
    """Compute the statistics of N rows from their sums over the whole vocabulary.

    Args:
        sums, z_target, targets: The sums; score and id of each row's target, shape [N].
        temperature, vocab_size, top_k: What the scores were divided by; V; the declared top-k.
        leaders: Each block's largest score, [N, leader_count(V)]; None if K is all of V.
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
