"""Turn hidden states into statistics and edge gaps, in blocks of rows sized for the hardware."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.logprob.kernels.epilogue import compiled_where_worth_it
from grpo_guard.logprob.kernels.head import ForeignHead, Head
from grpo_guard.logprob.kernels.penalty import RepetitionPenalty
from grpo_guard.logprob.kernels.scores import HeadScores, Scores, scores_of
from grpo_guard.logprob.kernels.statistics import RowStats
from grpo_guard.logprob.kernels.support import edge_gaps, full_rows
from grpo_guard.logprob.kernels.tiled import row_stats
from grpo_guard.logprob.kernels.triton_stats import (
    FLOATS,
    WORKSPACE_BYTES,
    supported,
    triton_row_stats,
)
from grpo_guard.logprob.noise import contender_counts
from grpo_guard.logprob.replay.candidates import Candidates, Contenders, candidates_for
from grpo_guard.logprob.replay.margins import Margins, RowReplay, replay_margins

Implementation: TypeAlias = Literal["auto", "tiled", "triton"]

# GPU kernel workspace, in bytes: 16,384 products per row, which for 512 rows fit in the cache of a
# large GPU. It scales with the number of rows, so halving the rows after an out-of-memory error
# halves the workspace too.
WORKSPACE_PER_ROW = 4 * 16_384

_triton_failed = False


class HeadStats(NamedTuple):
    """Statistics of N rows, with edge gaps of shape [N]; margins are None without a replay."""

    rows: RowStats
    edge_gap: Tensor
    margins: Margins | None


def head_stats(
    hidden: Tensor,
    head: Head | ForeignHead,
    targets: Tensor,
    spec: SamplingSpec,
    *,
    penalty: RepetitionPenalty | None = None,
    mass_margin: float = 0.0,
    rows_at_once: int = 512,
    replay: RowReplay | None = None,
    implementation: Implementation = "auto",
) -> HeadStats:
    """Compute each row's statistics and how far its target is from the edge of the support.

    Args:
        hidden, head: Final hidden states, shape [N, H], any float dtype; the output head.
        targets: Token ids, int64, shape [N].
        spec, penalty: The declared sampler; its repetition penalty for the same N rows.
        mass_margin: How far top-p is widened for the gap; see `edge_gaps`.
        rows_at_once: Number of rows that share a tile of scores; bounds memory.
        replay: Seeds and positions under a public coin; requires tiles, which can be observed.
        implementation: "auto" uses Triton kernels for a plain head without penalty on an NVIDIA
            GPU, and tiles otherwise, or (with a warning) if the kernels fail.

    Raises:
        ImportError, ValueError: ``"triton"`` was requested but does not support these arguments.
    """
    statistics = _chosen(implementation, hidden, head, penalty, replay)
    if isinstance(head, ForeignHead):
        rows_at_once = min(rows_at_once, full_rows(head.vocab_size))
    blocks = []
    for rows in torch.split(torch.arange(len(targets), device=targets.device), rows_at_once):
        scores = scores_of(
            hidden[rows], head, spec.temperature, penalty.rows(rows) if penalty else None
        )
        own, margins = targets[rows], None
        if replay is None:
            stats = statistics(scores, own, top_k=spec.top_k)
        else:
            stats, margins = replayed(scores, own, spec, replay.rows(rows))
        gaps = edge_gaps(scores, own, stats, spec, mass_margin=mass_margin)
        blocks.append(HeadStats(stats, gaps, margins))
    found = [b.margins for b in blocks if b.margins is not None]
    return HeadStats(
        RowStats(*_joined([b.rows for b in blocks])),
        torch.cat([b.edge_gap for b in blocks]),
        Margins(*_joined(found)) if found else None,
    )


def _chosen(
    implementation: Implementation,
    hidden: Tensor,
    head: Head | ForeignHead,
    penalty: RepetitionPenalty | None,
    replay: RowReplay | None,
) -> Callable[..., RowStats]:
    """Choose the function that computes the statistics; raises the errors of `head_stats`."""
    if implementation not in get_args(Implementation):
        raise ValueError(
            f"implementation: expected one of {', '.join(get_args(Implementation))}, "
            f"got {implementation!r}"
        )
    plain = isinstance(head, Head) and penalty is None and replay is None
    if implementation == "triton" and not plain:
        raise ValueError(
            "implementation='triton': expected a plain linear head and no repetition penalty "
            f"or replay, got {type(head).__name__}, penalty {penalty and penalty.penalty} and "
            f"{'a' if replay else 'no'} replay"
        )
    suits = plain and not _triton_failed and len(hidden) > 0 and hidden.dtype in FLOATS
    if implementation == "triton":
        return _by_triton
    if implementation == "auto" and suits and supported(hidden.device):
        return _by_triton_or_tiles
    return row_stats


def _joined(parts: Sequence[Iterable[Tensor]]) -> Iterator[Tensor]:
    return (torch.cat(column) for column in zip(*parts, strict=True))


def replayed(
    scores: Scores, targets: Tensor, spec: SamplingSpec, replay: RowReplay
) -> tuple[RowStats, Margins]:
    """Compute the statistics and the margins under a public coin in a single pass."""
    if not spec.truncates:
        own, size = scores.of(targets), scores.vocab_size
        counts = compiled_where_worth_it(contender_counts, 3, size, targets.device)
        best = Contenders(own, targets, replay, size, counts)
        stats = row_stats(scores, targets, top_k=spec.top_k, observer=best)
        return stats, best.margins(own, spec.temperature)
    most = min(candidates_for(spec), scores.vocab_size)
    likeliest = Candidates(len(targets), most, targets.device)
    stats = row_stats(scores, targets, top_k=spec.top_k, observer=likeliest)
    margins = replay_margins(
        likeliest.values,
        likeliest.tokens,
        stats.logit / spec.temperature,
        targets,
        likeliest.values[:, 0] - stats.max_logprob,
        replay,
        spec,
        vocab_size=scores.vocab_size,
    )
    return stats, margins


def _by_triton(scores: HeadScores, targets: Tensor, **options: Any) -> RowStats:
    return triton_row_stats(
        scores.hidden,
        scores.head,
        targets,
        temperature=scores.temperature,
        workspace_bytes=min(WORKSPACE_BYTES, len(targets) * WORKSPACE_PER_ROW),
        **options,
    )


def _by_triton_or_tiles(scores: HeadScores, targets: Tensor, **options: Any) -> RowStats:
    """Use the GPU kernels; if they cannot be built or launched, switch to tiles permanently."""
    global _triton_failed
    if not _triton_failed:
        try:
            return _by_triton(scores, targets, **options)
        except (ValueError, torch.cuda.OutOfMemoryError):
            raise  # caused by the arguments or the batch, not by the kernels
        except Exception as error:
            _triton_failed = True
            warnings.warn(
                f"the Triton kernels failed ({type(error).__name__}: {str(error)[:200]}); scoring "
                "continues with tiles",
                RuntimeWarning,
                stacklevel=2,
            )
    return row_stats(scores, targets, **options)
