"""Turn hidden states into statistics and edge gaps, in blocks of rows sized for the hardware."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.logprob.kernels.scores import (
    ForeignHead,
    Head,
    HeadScores,
    RepetitionPenalty,
    Scores,
    scores_of,
)
from grpo_guard.logprob.kernels.statistics import RowStats
from grpo_guard.logprob.kernels.support import edge_gaps, full_rows
from grpo_guard.logprob.kernels.tiled import compiled_where_worth_it, row_stats
from grpo_guard.logprob.kernels.triton_stats import (
    FLOATS,
    WORKSPACE_BYTES,
    supported,
    triton_row_stats,
)
from grpo_guard.logprob.noise import contender_counts
from grpo_guard.logprob.replay.candidates import Candidates, Contenders, candidates_for
from grpo_guard.logprob.replay.margins import Margins, RowReplay, replay_margins

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
) -> HeadStats:
    """Compute each row's statistics and how far its target is from the edge of the support.

    Args:
        hidden, head: Final hidden states, shape [N, H], any float dtype; the output head.
        targets: Token ids, int64, shape [N].
        spec, penalty: The declared sampler; its repetition penalty for the same N rows.
        mass_margin: How far top-p is widened for the gap; see `edge_gaps`.
        rows_at_once: Number of rows that share a tile of scores; bounds memory.
        replay: Seeds and positions under a public coin; requires tiles, which can be observed.
    """
    # The Triton kernels support a plain head without penalty on an NVIDIA GPU.
    plain = isinstance(head, Head) and penalty is None and replay is None
    by_triton = plain and len(hidden) > 0 and hidden.dtype in FLOATS and supported(hidden.device)
    statistics: Callable[..., RowStats] = _by_triton_or_tiles if by_triton else row_stats
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


def _joined(parts: Sequence[Iterable[Tensor]]) -> Iterator[Tensor]:
    return (torch.cat(column) for column in zip(*parts, strict=True))


def replayed(
    scores: Scores, targets: Tensor, spec: SamplingSpec, replay: RowReplay
) -> tuple[RowStats, Margins]:
    """Compute the statistics and the margins under a public coin in a single pass."""
    if not spec.truncates:
        own, size = scores.of(targets), scores.vocab_size
        counts = compiled_where_worth_it(contender_counts, 3, 0, size)
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


def _by_triton_or_tiles(scores: HeadScores, targets: Tensor, *, top_k: int) -> RowStats:
    """Use the GPU kernels; if they cannot be built or launched, switch to tiles permanently."""
    global _triton_failed
    if not _triton_failed:
        try:
            return triton_row_stats(
                scores.hidden,
                scores.head,
                targets,
                temperature=scores.temperature,
                top_k=top_k,
                workspace_bytes=min(WORKSPACE_BYTES, len(targets) * WORKSPACE_PER_ROW),
            )
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
    return row_stats(scores, targets, top_k=top_k)
