"""Hidden states to statistics and edge gaps, in blocks of rows, by what fits head and device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from grpo_guard.logprob.kernels.head import ForeignHead, Head
from grpo_guard.logprob.kernels.penalty import RepetitionPenalty
from grpo_guard.logprob.kernels.rows import RowStats
from grpo_guard.logprob.kernels.scores import HeadScores, LogitScores, Scores
from grpo_guard.logprob.kernels.support import edge_gaps
from grpo_guard.logprob.kernels.tiled import row_stats
from grpo_guard.sampling import SamplingSpec

# Rows of full logits that exist at one time where a head or a trainer gives no less.
FULL_ROWS = 64


def head_stats(
    hidden: Tensor,
    head: Head | ForeignHead,
    targets: Tensor,
    spec: SamplingSpec,
    *,
    penalty: RepetitionPenalty | None = None,
    mass_margin: float = 0.0,
    eos_ids: Sequence[int] = (),
    rows_at_once: int = 512,
) -> tuple[RowStats, Tensor]:
    """Statistics and gaps to the support's edge.

    Args:
        hidden: Final hidden states, shape [N, H], any float dtype.
        head: The output head.
        targets: Token ids, int64, shape [N].
        spec: The declared sampler.
        penalty: Repetition penalty whose rows are these N rows.
        mass_margin: Widening of top-p at which the gap is taken.
        eos_ids: Tokens that end a completion.
        rows_at_once: Rows that share a tile of scores; bounds memory.
    """
    if isinstance(head, ForeignHead):
        foreign, rows_at_once = head, min(rows_at_once, FULL_ROWS)

        def scores_of(rows: Tensor) -> Scores:
            own = penalty.rows(rows) if penalty else None
            return LogitScores(foreign.logits(hidden[rows]), spec.temperature, own)
    else:

        def scores_of(rows: Tensor) -> Scores:
            own = penalty.rows(rows) if penalty else None
            return HeadScores(hidden[rows], head, spec.temperature, own)

    return blockwise(scores_of, targets, spec, mass_margin, eos_ids, rows_at_once)


def logit_stats(
    logits: Tensor,
    targets: Tensor,
    spec: SamplingSpec,
    *,
    penalty: RepetitionPenalty | None = None,
    mass_margin: float = 0.0,
    eos_ids: Sequence[int] = (),
) -> tuple[RowStats, Tensor]:
    """The same from logits that exist already, shape [N, V]; see `head_stats`."""

    def scores_of(rows: Tensor) -> Scores:
        own = penalty.rows(rows) if penalty else None
        return LogitScores(logits[rows], spec.temperature, own)

    return blockwise(scores_of, targets, spec, mass_margin, eos_ids, FULL_ROWS)


def blockwise(
    scores_of: Callable[[Tensor], Scores],
    targets: Tensor,
    spec: SamplingSpec,
    mass_margin: float,
    eos_ids: Sequence[int],
    rows_at_once: int,
) -> tuple[RowStats, Tensor]:
    """Statistics and gaps of all rows, ``rows_at_once`` at a time."""
    blocks = []
    for rows in torch.split(torch.arange(len(targets), device=targets.device), rows_at_once):
        scores, own = scores_of(rows), targets[rows]
        stats = row_stats(scores, own, top_k=spec.top_k, eos_ids=eos_ids)
        gaps = edge_gaps(scores, own, stats, spec, mass_margin=mass_margin)
        blocks.append((stats, gaps))
    stats = RowStats(*(torch.cat(column) for column in zip(*(s for s, _ in blocks), strict=True)))
    return stats, torch.cat([gaps for _, gaps in blocks])
