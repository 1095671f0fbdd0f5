"""Times the output head's token statistics against the bare product and naive implementations."""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_guard.evals.studies.bench.measure import Timing, interleaved
from grpo_guard.logprob.kernels import tiled as tiles
from grpo_guard.logprob.kernels.product import onednn_is_faster, product
from grpo_guard.logprob.kernels.scores import Head, HeadScores
from grpo_guard.logprob.kernels.statistics import tile_sums
from grpo_guard.logprob.kernels.tiled import (
    ONEDNN_TILE,
    TILE,
    compiled_where_worth_it,
    has_compiler,
    row_stats,
)
from grpo_guard.logprob.scorers.memory import MOST_HEAD_ROWS

TEMPERATURE = 0.7
NAIVE_ROWS = 256
ROWS_AT_ONCE = MOST_HEAD_ROWS["cpu"]


@dataclass(frozen=True, slots=True)
class HeadCase:
    """Sizes of one comparison: N rows, vocabulary V, hidden size H."""

    rows: int
    vocab: int
    hidden: int
    dtype: torch.dtype
    top_k: int = 50

    @property
    def name(self) -> str:
        """Name of the comparison in results."""
        dtype = str(self.dtype).removeprefix("torch.")
        return f"head, {dtype} weights, N={self.rows} V={self.vocab} H={self.hidden}"

    def tensors(self, device: str) -> tuple[Tensor, Tensor, Tensor]:
        """Draw hidden states [N, H], weight [V, H], targets [N]."""
        generator = torch.Generator(device).manual_seed(0)
        hidden = torch.randn(self.rows, self.hidden, generator=generator, device=device)
        weight = torch.randn(self.vocab, self.hidden, generator=generator, device=device)
        weight.mul_(3 / math.sqrt(self.hidden))
        targets = torch.randint(0, self.vocab, (self.rows,), generator=generator, device=device)
        return hidden.to(self.dtype), weight.to(self.dtype), targets


def compiled_from_now_on(vocab_size: int) -> None:
    """Simulate a run after its first rounds: from now on the sums are compiled, if possible."""
    compiled_where_worth_it(tile_sums, 2, tiles.WORTH_COMPILING + 1, vocab_size)


def product_only(hidden: Tensor, weight: Tensor, *, faster: bool = True) -> None:
    """Compute the floor: only the product, by tiles (bf16 upcast first), without statistics.

    With ``faster``, this uses the same library, rows and tiles as our own code; otherwise it uses
    PyTorch's choice of library and all rows at once, in tiles of 4096.
    """
    if faster and onednn_is_faster():
        blocks, tile = torch.split(hidden.float(), ROWS_AT_ONCE), ONEDNN_TILE
    else:
        blocks, tile = (hidden.float(),), TILE
    for states in blocks:
        out = torch.empty(len(states) * tile)
        upcast = torch.empty(tile, weight.shape[1]) if weight.dtype != torch.float32 else None
        for start in range(0, len(weight), tile):
            w = weight[start : start + tile]
            if upcast is not None:
                w = upcast[: len(w)].copy_(w)
            z = out[: len(states) * len(w)].view(len(states), -1)
            if faster:
                product(states, w, out=z)
            else:
                torch.mm(states, w.T, out=z)


def naive_sort(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute log-prob, rank and mass above the obvious way: log_softmax, sort, cumsum, gather."""
    log_p = torch.log_softmax((hidden @ weight.T).float() / TEMPERATURE, -1)
    ranked, order = torch.sort(log_p, dim=-1, descending=True)
    rank = (order == targets[:, None]).int().argmax(-1)
    del order
    own = log_p.gather(1, targets[:, None])[:, 0]
    above = ranked.exp().cumsum(-1).gather(1, rank[:, None])[:, 0] - own.exp()
    return own, rank, above


def full_logits(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute log-prob, rank and mass above from all logits at once, without sorting."""
    z = (hidden @ weight.T).float() / TEMPERATURE
    own = z.gather(1, targets[:, None])
    p = torch.softmax(z, -1)
    above = z > own
    log_p = (own - z.logsumexp(-1, keepdim=True))[:, 0]
    return log_p, above.sum(-1), (p * above).sum(-1)


def cpu_head(case: HeadCase, *, rounds: int) -> list[Timing]:
    """Run one comparison on the CPU; naive variants only if fair (float32) and within memory."""
    hidden, weight, targets = case.tensors("cpu")

    def tiled(worth_compiling: int) -> Callable[[], object]:
        return lambda: _by_blocks(hidden, Head(weight), targets, case.top_k, worth_compiling)

    variants: dict[str, Callable[[], object]] = {
        "product only, by tiles (floor)": lambda: product_only(hidden, weight)
    }
    if onednn_is_faster():
        variants["product only, by PyTorch's default"] = lambda: product_only(
            hidden, weight, faster=False
        )
    if has_compiler():
        variants["grpo-guard tiled, compiled"] = tiled(-1)
    variants["grpo-guard tiled, eager"] = tiled(sys.maxsize)
    if case.dtype == torch.float32 and case.rows <= NAIVE_ROWS:
        variants["full logits, no sort"] = lambda: full_logits(hidden, weight, targets)
        variants["log_softmax + sort + cumsum"] = lambda: naive_sort(hidden, weight, targets)
    with torch.no_grad():
        return interleaved(variants, rounds=rounds)


def _by_blocks(
    hidden: Tensor, head: Head, targets: Tensor, top_k: int, worth_compiling: int
) -> None:
    """Compute as the scorer does, with 512 rows sharing a tile of scores, and with sums that are
    compiled after this number of scores."""
    tiles.WORTH_COMPILING = worth_compiling
    blocks = (torch.split(tensor, ROWS_AT_ONCE) for tensor in (hidden, targets))
    for h, y in zip(*blocks, strict=True):
        row_stats(HeadScores(h, head, TEMPERATURE), y, top_k=top_k)


def cuda_head(case: HeadCase, *, rounds: int) -> list[Timing]:
    """Run one comparison on a GPU; the floor is a single product whose result is discarded."""
    from grpo_guard.logprob.kernels.triton_stats import triton_row_stats

    hidden, weight, targets = case.tensors("cuda")
    out = torch.empty(case.rows, case.vocab, dtype=case.dtype, device="cuda")
    head = Head(weight)

    def ours() -> object:
        return triton_row_stats(hidden, head, targets, temperature=TEMPERATURE, top_k=case.top_k)

    variants: dict[str, Callable[[], object]] = {
        "product only (floor)": lambda: torch.mm(hidden, weight.T, out=out),
        "grpo-guard": ours,
        "full logits, no sort": lambda: full_logits(hidden, weight, targets),
        "full logits, torch.compile": _compiled_full(hidden, weight, targets),
        "log_softmax + sort + cumsum": lambda: naive_sort(hidden, weight, targets),
    }
    liger = _liger(hidden, weight, targets)
    if liger is not None:
        variants["Liger fused linear cross entropy (log-prob only)"] = liger
    with torch.no_grad():
        return interleaved(variants, rounds=rounds, clock="cuda")


def _compiled_full(hidden: Tensor, weight: Tensor, targets: Tensor) -> Callable[[], object]:
    compiled = torch.compile(full_logits)
    return lambda: compiled(hidden, weight, targets)


def _liger(hidden: Tensor, weight: Tensor, targets: Tensor) -> Callable[[], object] | None:
    """Return Liger's variant, or None if Liger is not installed."""
    try:
        from liger_kernel.transformers import (  # type: ignore[import-not-found]
            LigerFusedLinearCrossEntropyLoss,
        )
    except ImportError:
        return None
    loss = LigerFusedLinearCrossEntropyLoss(reduction="none")
    return lambda: loss(weight, hidden, targets)
