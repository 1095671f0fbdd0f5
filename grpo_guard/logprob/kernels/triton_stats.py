"""The statistics of `tiled.py` on a GPU, with Triton kernels for the same sums.

The BLAS library writes the products for one vocabulary chunk into bounded memory, and a kernel
reads them once. As for tiles, `statistics.finish` turns the sums into statistics.
"""

import functools
import importlib.util
from dataclasses import replace

import torch
from torch import Tensor

from grpo_guard.logprob.kernels.scores import Head
from grpo_guard.logprob.kernels.statistics import RowStats, finish
from grpo_guard.logprob.stats import LARGEST_TOP_K

WORKSPACE_BYTES = 256 * 2**20
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def triton_row_stats(
    hidden: Tensor,
    head: Head,
    targets: Tensor,
    *,
    temperature: float,
    top_k: int = 0,
    workspace_bytes: int = WORKSPACE_BYTES,
) -> RowStats:
    """Compute the statistics of each row's target token.

    Products are accumulated in fp32. Operands that share a 16-bit dtype are multiplied as they are;
    if the dtypes differ, both are upcast, because rounding an fp32 state to bf16 would change the
    logits. TF32 products, which a trainer may allow, are not used because they have three fewer
    digits. Log-probs are as exact as fp32 scores: within 1e-4 of float64 in the interpreter up to
    |logit / temperature| of 250 (temperature 0.05), with proportionally larger errors beyond.

    Args:
        hidden, head: Final hidden states, fp32, bf16 or fp16, shape [N, H], N >= 1; output head.
        targets: Token ids, int64, shape [N].
        temperature, top_k: The sampler's temperature, > 0; the declared top-k, or 0 for none.
        workspace_bytes: Maximum memory for products, in bytes. At least 4096 columns are computed
            at a time, even if they need more.

    Raises:
        ImportError: triton is not installed.
        ValueError: an argument is not as described.
    """
    if not triton_available():
        raise ImportError(
            "triton_row_stats: expected the package triton (it comes with torch for CUDA on Linux; "
            "otherwise `pip install triton`), found none"
        )
    from grpo_guard.logprob.kernels import triton_launch as launch

    _check(hidden, head, targets, temperature, launch.INTERPRETED)
    job = launch.Job(
        hidden=hidden.detach() if hidden.stride(-1) == 1 else hidden.detach().contiguous(),
        head=head,
        targets=targets.contiguous(),
        temperature=temperature,
        ranks=0 < top_k <= LARGEST_TOP_K,
    )

    def score_of(rows: Tensor, tokens: Tensor) -> Tensor:
        part = replace(job, hidden=job.hidden[rows])
        return launch.token_scores(part, tokens[:, None])[:, 0]

    z_target = launch.token_scores(job, job.targets[:, None])[:, 0].contiguous()
    sums, leaders = launch.workspace_sums(job, z_target, workspace_bytes)
    return finish(
        sums,
        z_target=z_target,
        targets=targets,
        temperature=temperature,
        vocab_size=head.vocab_size,
        leaders=leaders,
        top_k=top_k,
        score_of=score_of,
    )


def triton_available() -> bool:
    """Whether triton can be imported, checked without importing it."""
    return importlib.util.find_spec("triton") is not None


@functools.cache
def supported(device: torch.device) -> bool:
    """Whether the kernels support this device: NVIDIA, Ampere or later, with triton installed."""
    return (
        device.type == "cuda"
        and torch.version.hip is None
        and torch.cuda.get_device_capability(device) >= (8, 0)
        and triton_available()
    )


def _check(
    hidden: Tensor, head: Head, targets: Tensor, temperature: float, interpreted: bool
) -> None:
    weight = head.weight
    if hidden.ndim != 2 or len(hidden) < 1 or hidden.shape[1] != weight.shape[1]:
        raise ValueError(
            f"hidden: expected shape [N >= 1, {weight.shape[1]}], got {list(hidden.shape)}"
        )
    if targets.shape != hidden.shape[:1] or targets.dtype != torch.int64:
        raise ValueError(
            f"targets: expected int64 of shape [{len(hidden)}], got {targets.dtype} of shape "
            f"{list(targets.shape)}"
        )
    for name, dtype in (("hidden", hidden.dtype), ("head.weight", weight.dtype)):
        if dtype not in FLOATS:
            raise ValueError(f"{name}: expected float32, bfloat16 or float16, got {dtype}")
    if not temperature > 0:
        raise ValueError(f"temperature: expected a number > 0, got {temperature!r}")
    if not (interpreted or hidden.is_cuda):
        raise ValueError(
            f"hidden: expected a tensor on a CUDA device, got one on {hidden.device} (with "
            "TRITON_INTERPRET=1 in the environment the kernels run anywhere, slowly)"
        )
    # A GPU does not check bounds: an out-of-range id would read memory outside the tensor.
    lowest, highest = torch.stack([targets.min(), targets.max()]).tolist()
    if not (lowest >= 0 and highest < head.vocab_size):
        raise ValueError(
            f"targets: expected token ids in [0, {head.vocab_size}), got {lowest} to {highest}"
        )
