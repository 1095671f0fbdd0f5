"""Launch the Triton kernels. Imports triton, so `triton_stats.py` only imports it when called."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from grpo_guard.core.forks import Lock
from grpo_guard.logprob.kernels import triton_kernels as kernels
from grpo_guard.logprob.kernels.scores import Head
from grpo_guard.logprob.kernels.statistics import COUNTS, SUMS, Partial, merged
from grpo_guard.logprob.stats import leader_block, leader_count

# With TRITON_INTERPRET=1 the decorator returns a class other than JITFunction.
INTERPRETED = not isinstance(kernels.chunk_sums_kernel, triton.JITFunction)

# Columns per program in the kernel that reads a stored chunk. Chunks are a multiple of this.
SEGMENT = 128 if INTERPRETED else 4096
# The default varies between Triton versions; the kernels are correct either way.
OPTIONS: dict[str, Any] = {"enable_fp_fusion": True}

_precision = Lock()


@dataclass(frozen=True, slots=True)
class Job:
    """The arguments of one call, checked and prepared for launching."""

    hidden: Tensor  # [N, H], rows contiguous, dtype as given
    head: Head
    targets: Tensor  # int64, contiguous, [N]
    temperature: float
    ranks: bool  # whether to compute leaders; otherwise the sums of e^0.5 and e^0.75

    @property
    def scale(self) -> float:
        return self.head.scale / self.temperature

    @property
    def cap(self) -> float:
        return (self.head.softcap or 1.0) / self.temperature

    @property
    def flags(self) -> dict[str, bool]:
        return {"HAS_BIAS": self.head.bias is not None, "CAPPED": self.head.softcap is not None}

    @property
    def bias(self) -> Tensor:
        """The head's bias or, if it has none, an arbitrary tensor that no kernel reads."""
        return self.hidden if self.head.bias is None else self.head.bias.detach().contiguous()


def token_scores(job: Job, tokens: Tensor) -> Tensor:
    """Compute the scores of selected tokens, int64 [N, E] -> fp32 [N, E]."""
    out = torch.empty(tokens.shape, dtype=torch.float32, device=tokens.device)
    if tokens.numel() == 0:
        return out
    weight, width = job.head.weight, job.hidden.shape[1]
    with _on(job.hidden.device):
        kernels.token_scores_kernel[(tokens.numel(),)](
            job.hidden, weight, job.bias, tokens.contiguous(), out, tokens.shape[1], width,
            job.hidden.stride(0), weight.stride(0), weight.stride(1), job.scale, job.cap,
            **job.flags, BH=min(1024, triton.next_power_of_2(width)), **OPTIONS,
        )  # fmt: skip
    return out


def workspace_sums(
    job: Job, target_scores: Tensor, workspace_bytes: int
) -> tuple[Partial, Tensor | None]:
    """Compute sums and, if the job ranks tokens, leaders, one chunk of the vocabulary at a time."""
    n, vocab_size, device = len(job.targets), job.head.vocab_size, job.hidden.device
    segments = -(-vocab_size // SEGMENT)
    sums = torch.empty(segments, SUMS, n, dtype=torch.float32, device=device)
    counts = torch.empty(segments, len(COUNTS), n, dtype=torch.int32, device=device)
    # If no leaders are needed, the tensor holds a single number.
    shape = (n, leader_count(vocab_size)) if job.ranks else (1, 1)
    leaders = torch.full(shape, -torch.inf, dtype=torch.float32, device=device)
    spent = 4 * (2 * (sums.numel() + counts.numel()) + leaders.numel())
    columns = chunk_columns(job, workspace_bytes - spent)
    hidden = job.hidden if _mixed(job) else job.hidden.float()
    for first in range(0, vocab_size, columns):
        tile = job.head.weight.detach()[first : first + columns]
        if _mixed(job):
            products = torch.mm(hidden, tile.T, out_dtype=torch.float32)
        else:
            with _without_tf32():
                products = torch.mm(hidden, tile.float().T)
        parts = -(-len(tile) // SEGMENT)
        with _on(device):
            kernels.chunk_sums_kernel[(n * parts,)](
                products, job.bias, job.targets, target_scores,
                sums, counts, leaders, n, len(tile), products.stride(0), first, first // SEGMENT,
                leaders.shape[1], job.scale, job.cap,
                **job.flags, FLAT=not job.ranks, RANKS=job.ranks,
                BLOCK=leader_block(vocab_size), BV=SEGMENT, num_warps=8, **OPTIONS,
            )  # fmt: skip
        del products  # before the next chunk is computed, or the workspace would double
    whole = merged(Partial(*sums.unbind(1), *counts.long().unbind(1)))
    return whole, leaders if job.ranks else None


def chunk_columns(job: Job, budget: int) -> int:
    """Return the number of columns per chunk: as many whole segments as fit into the byte budget,
    but at least one."""
    n, width = job.hidden.shape
    # A weight that cannot be multiplied as stored is upcast one chunk at a time.
    upcast = not _mixed(job) and job.head.weight.dtype != torch.float32
    fixed = 4 * n * width if not _mixed(job) and job.hidden.dtype != torch.float32 else 0
    per_column = 4 * n + (4 * width if upcast else 0)
    return max(1, (budget - fixed) // (per_column * SEGMENT)) * SEGMENT


def _mixed(job: Job) -> bool:
    """Whether 16-bit operands can be multiplied into fp32 without upcasting (CUDA only)."""
    return (
        job.hidden.is_cuda
        and job.hidden.dtype == job.head.weight.dtype
        and job.hidden.dtype in (torch.bfloat16, torch.float16)
    )


@contextmanager
def _without_tf32() -> Iterator[None]:
    """Compute fp32 products in full precision, whatever the trainer has set process-wide."""
    matmul: Any = torch.backends.cuda.matmul
    with _precision:  # interleaved scorers could restore each other's setting, not the trainer's
        # torch >= 2.9 has ``fp32_precision``, and reading the older attribute can then raise.
        name = "fp32_precision" if hasattr(matmul, "fp32_precision") else "allow_tf32"
        before = getattr(matmul, name)
        if before in (True, "tf32"):
            setattr(matmul, name, False if before is True else "ieee")
        try:
            yield
        finally:
            if before in (True, "tf32"):
                setattr(matmul, name, before)


@contextmanager
def _on(device: torch.device) -> Iterator[None]:
    """Make this the current device: Triton launches there regardless of the tensors' device."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            yield
    else:
        yield
