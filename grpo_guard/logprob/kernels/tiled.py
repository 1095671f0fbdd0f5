"""Statistics from one pass over tiles of the vocabulary; the logits are never stored in full."""

import functools
import shutil
import warnings
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from grpo_guard.core.forks import Lock
from grpo_guard.logprob.kernels.product import onednn_is_faster
from grpo_guard.logprob.kernels.scores import Scores
from grpo_guard.logprob.kernels.statistics import PartialSums, RowStats, finish, tile_sums
from grpo_guard.logprob.stats import (
    LARGEST_TOP_K,
    LEADER_STRIDE,
    leader_block,
    leader_count,
)

TILE = 4096  # compiled sums read a tile once, so larger products are faster
EAGER_CPU_TILE = 1024  # eager sums read a tile a dozen times, so it has to fit into the CPU cache
ONEDNN_TILE = 2048  # oneDNN allocates memory for each tile, plus as much again for scratch space
# Compiling took 12 to 19 s on one core; eager sums cost 11 ns a score more than compiled ones.
WORTH_COMPILING = 1_000_000_000
SMALL_VOCABULARY = 8192  # up to this, a tile is too small to benefit from the compiled form

_lock = Lock()
_scores_so_far = 0
_compiler_failed = False

Observer: TypeAlias = Callable[[Tensor, int], None]
"""A callback that receives each tile's scores, [N, W], and the id of its first token."""


def row_stats(
    scores: Scores,
    targets: Tensor,
    *,
    top_k: int = 0,
    observer: Observer | None = None,
    tile: int | None = None,
) -> RowStats:
    """Compute the statistics of each row's target token.

    Args:
        scores, targets: Scores of N rows, and token ids, int64, shape [N].
        top_k: The declared top-k, or 0 for none.
        observer: Called with every tile of scores, to compute further statistics.
        tile: Number of tokens per tile, rounded down to whole blocks (at least one), or None to
            choose by device and by whether the sums are compiled.
    """
    n, vocab_size, device = len(targets), scores.vocab_size, targets.device
    sums_of = compiled_where_worth_it(tile_sums, 2, n * vocab_size, vocab_size)
    tile = _whole_blocks(tile or _usual_tile(device, sums_of is tile_sums), vocab_size)
    block = leader_block(vocab_size)
    # Score the target first and copy its score into its own column, so that rounding cannot make a
    # token outrank itself.
    z_target = scores.of(targets)
    ranks = 0 < top_k <= LARGEST_TOP_K
    leaders = z_target.new_empty(n, leader_count(vocab_size)) if ranks else None
    order, bounds = _by_tile(targets, tile, vocab_size)
    buffer = z_target.new_empty(n, tile)
    sums = PartialSums(z_target)
    for i, start in enumerate(range(0, vocab_size, tile)):
        stop = min(start + tile, vocab_size)
        z = scores.tile(start, stop, out=buffer[:, : stop - start])
        mine = order[bounds[i] : bounds[i + 1]]
        z[mine, targets[mine] - start] = z_target[mine]
        if observer is not None:
            observer(z, start)
        part, best = sums_of(_padded(z, buffer), z_target, block, not ranks)
        sums.add(part)
        if leaders is not None:
            own = leaders[:, start // block : (start + tile) // block]
            own.copy_(best[:, : own.shape[-1]])
        del z  # otherwise two tiles would be held while the next is computed
    return finish(
        sums.total(),
        z_target=z_target,
        targets=targets,
        temperature=scores.temperature,
        vocab_size=vocab_size,
        leaders=leaders,
        top_k=top_k,
        score_of=lambda rows, tokens: scores.rows(rows).of(tokens),
    )


def _usual_tile(device: torch.device, eager: bool) -> int:
    if device.type != "cpu":
        return TILE
    if eager:
        return EAGER_CPU_TILE
    return ONEDNN_TILE if onednn_is_faster() else TILE


def _whole_blocks(tile: int, vocab_size: int) -> int:
    """Round the number of tokens per tile so that no block is split."""
    span = leader_block(vocab_size) * LEADER_STRIDE
    return min(max(1, tile // span), -(-vocab_size // span)) * span


def _by_tile(targets: Tensor, tile: int, vocab_size: int) -> tuple[Tensor, list[int]]:
    """Sort the rows by target, and return where each tile's rows begin and end in that order."""
    order = torch.argsort(targets)
    starts = torch.arange(0, vocab_size + tile, tile, device=targets.device)
    bounds: list[int] = torch.searchsorted(targets[order], starts).tolist()
    return order, bounds


def _padded(z: Tensor, buffer: Tensor) -> Tensor:
    """Pad the last tile with -inf, so that all tiles share one shape and one kernel."""
    if z.shape[-1] == buffer.shape[-1]:
        return z
    if z.data_ptr() != buffer.data_ptr():
        buffer[:, : z.shape[-1]] = z
    buffer[:, z.shape[-1] :] = -torch.inf
    return buffer


@functools.cache
def has_compiler() -> bool:
    """Whether torch.compile can build CPU code on this machine."""
    return any(shutil.which(name) for name in ("g++", "clang++"))


def compiled_where_worth_it(
    eager: Callable[..., Any], by_row: int, scores: int, vocab_size: int
) -> Callable[..., Any]:
    """Return the function to use on tiles of the next ``scores`` scores: ``eager``, or the same
    compiled; its first ``by_row`` arguments have one row per token.

    Eager torch reads a tile a dozen times, which costs as much as the matrix product that produced
    it; compiled sums cost about a tenth of that. Compiling takes seconds, so it is deferred until
    eager sums have cost about as much.
    """
    global _scores_so_far
    with _lock:
        _scores_so_far += scores
        worth_it = _scores_so_far > WORTH_COMPILING and vocab_size > SMALL_VOCABULARY
    usable = worth_it and not _compiler_failed and has_compiler()
    return _compiled(eager, by_row) if usable else eager


@functools.cache
def _compiled(eager: Callable[..., Any], by_row: int) -> Callable[..., Any]:
    """Compile a tile function; if that fails, the eager one is used from then on."""
    compiled = torch.compile(eager, dynamic=None)

    def call(*arguments: Any) -> Any:
        global _compiler_failed
        # A dynamic dimension of 1 would be recompiled.
        if _compiler_failed or arguments[0].shape[0] == 1:
            return eager(*arguments)
        try:
            for tensor in arguments[:by_row]:  # batches vary in rows but share a kernel
                torch._dynamo.mark_dynamic(tensor, 0)
            return compiled(*arguments)
        except Exception as error:
            _compiler_failed = True
            warnings.warn(
                f"torch.compile failed ({type(error).__name__}: {str(error)[:200]}); scoring "
                "continues without it, about 1.5 times slower",
                RuntimeWarning,
                stacklevel=2,
            )
        return eager(*arguments)

    return call
