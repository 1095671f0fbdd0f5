"""The statistics of `tiled.py` on a GPU, by Triton kernels; same sums, same `rows.finish`.

Two routes lead to the sums. "fused" multiplies and sums in one kernel and never stores a score.
"workspace" lets the BLAS library write the products of a chunk of the vocabulary into bounded
memory and reads them once. Which is faster depends on the width of the model and on the GPU, so
"auto" measures.
"""

from __future__ import annotations

import functools
import importlib.util
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias, TypeVar, get_args

import torch
from torch import Tensor

from grpo_guard.logprob.kernels.head import Head
from grpo_guard.logprob.kernels.rows import RowStats, finish
from grpo_guard.logprob.stats import LARGEST_TOP_K, MOST_LEADERS, leader_block

Route: TypeAlias = Literal["auto", "fused", "workspace"]
T = TypeVar("T")

WORKSPACE_BYTES = 256 * 2**20
# A call with fewer rows says little about how fast a route is; it takes the workspace.
ENOUGH_ROWS = 128
# Timed runs of each route, after one that compiles and tunes.
TIMED_RUNS = 3
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def triton_row_stats(
    hidden: Tensor,
    head: Head,
    targets: Tensor,
    *,
    temperature: float,
    top_k: int = 0,
    tie_margin: Tensor | float = 0.0,
    eos_ids: Sequence[int] = (),
    route: Route = "auto",
    workspace_bytes: int = WORKSPACE_BYTES,
) -> RowStats:
    """Statistics of each row's target token.

    Products are accumulated in fp32. Operands of one 16-bit dtype are multiplied as they are; where
    the dtypes differ both are upcast, because rounding an fp32 state to bf16 would move logits.
    Log-probs are as exact as fp32 scores: within 1e-4 of float64 in the interpreter up to
    |logit / temperature| of 250 (temperature 0.05), and off in proportion beyond.

    Args:
        hidden: Final hidden states, fp32, bf16 or fp16, shape [N, H], N >= 1.
        head: The output head.
        targets: Token ids, int64, shape [N].
        temperature: > 0.
        top_k: The declared one; 0 = off.
        tie_margin: In raw logits, a number or one per row, shape [N].
        eos_ids: Tokens that end a completion.
        route: "fused" needs a weight whose rows are contiguous. "auto" times both routes on the
            first call of at least `ENOUGH_ROWS` rows for a device, dtypes and shape of head, and
            keeps to the faster. It leaves the workspace out where the caller has allowed TF32
            products, which have three digits fewer than the fused kernel's.
        workspace_bytes: Bound on the memory of the "workspace" route. It takes at least 4096
            columns at a time, even where they need more.

    Raises:
        ImportError: triton is not installed.
        ValueError: an argument is not as described.
    """
    require_triton()
    from grpo_guard.logprob.kernels import triton_launch as launch

    _check(hidden, head, targets, temperature, eos_ids, launch.INTERPRETED)
    job = _job(hidden, head, targets, temperature, tie_margin, top_k)
    z_target = launch.token_scores(job, job.targets[:, None])[:, 0].contiguous()
    ways: dict[str, Callable[[], Any]] = {
        "workspace": lambda: launch.workspace_sums(job, z_target, workspace_bytes),
        "fused": lambda: launch.fused_sums(job, z_target),
    }
    sums, leaders = _routed(route, ways, job.hidden, head, job.ranks)
    return finish(
        sums,
        z_target=z_target,
        z_eos=_eos_scores(job, eos_ids),
        targets=targets,
        temperature=temperature,
        vocab_size=head.vocab_size,
        leaders=leaders,
        top_k=top_k,
        score_of=functools.partial(_score_of, job),
    )


def _eos_scores(job: Any, eos_ids: Sequence[int]) -> Tensor:
    """Scores of the EOS tokens, [N, E]."""
    from grpo_guard.logprob.kernels import triton_launch as launch

    ids = job.targets.new_tensor([list(eos_ids)]).expand(len(job.targets), -1)
    return launch.token_scores(job, ids)


def _score_of(job: Any, rows: Tensor, tokens: Tensor) -> Tensor:
    """Score of one token in each of a few rows, [R], [R] -> [R]."""
    from grpo_guard.logprob.kernels import triton_launch as launch

    part = replace(job, hidden=job.hidden[rows])
    return launch.token_scores(part, tokens[:, None])[:, 0]


def _job(
    hidden: Tensor,
    head: Head,
    targets: Tensor,
    temperature: float,
    tie_margin: Tensor | float,
    top_k: int,
) -> Any:
    """The arguments as the kernels read them."""
    from grpo_guard.logprob.kernels import triton_launch as launch

    margins = torch.as_tensor(tie_margin, device=hidden.device).float() / temperature
    return launch.Job(
        hidden=hidden.detach() if hidden.stride(-1) == 1 else hidden.detach().contiguous(),
        head=head,
        targets=targets.contiguous(),
        temperature=temperature,
        margins=margins.expand(len(targets)).contiguous(),
        ranks=0 < top_k <= LARGEST_TOP_K,
    )


def triton_available() -> bool:
    """Whether triton can be imported; looks for it without importing it."""
    return importlib.util.find_spec("triton") is not None


def require_triton() -> None:
    """Say in words what is missing.

    Raises:
        ImportError: triton is not installed.
    """
    if not triton_available():
        raise ImportError(
            "triton_row_stats: expected the package triton (it comes with torch for CUDA on Linux; "
            "otherwise `pip install triton`), found none; implementation='tiled' needs no triton"
        )


@functools.cache
def supported(device: torch.device) -> bool:
    """Whether the kernels are meant for this device: NVIDIA, Ampere or later, triton installed."""
    return (
        device.type == "cuda"
        and torch.version.hip is None
        and torch.cuda.get_device_capability(device) >= (8, 0)
        and triton_available()
    )


class MeasuredRoutes:
    """Which of several ways to the same result was fastest, per kind of call.

    Args:
        seconds: Runs a way once and tells how long it took.
    """

    def __init__(self, seconds: Callable[[Callable[[], Any]], float]) -> None:
        self._seconds = seconds
        self._fastest: dict[Hashable, str] = {}
        self._lock = threading.Lock()

    def fastest(self, key: Hashable, ways: Mapping[str, Callable[[], Any]]) -> str:
        """The name of the fastest way, measured when ``key`` is new."""
        with self._lock:
            if key not in self._fastest:
                self._fastest[key] = min(ways, key=lambda name: self._time(ways[name]))
            return self._fastest[key]

    def _time(self, way: Callable[[], Any]) -> float:
        way()  # compiles and tunes
        return min(self._seconds(way) for _ in range(TIMED_RUNS))


def _cuda_seconds(way: Callable[[], Any]) -> float:
    event: Any = torch.cuda.Event
    start, end = event(enable_timing=True), event(enable_timing=True)
    start.record()
    way()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000


_routes = MeasuredRoutes(_cuda_seconds)


def _routed(
    route: Route, ways: dict[str, Callable[[], T]], hidden: Tensor, head: Head, ranks: bool
) -> T:
    """The sums by the demanded or the fastest route."""
    if route not in get_args(Route):
        raise ValueError(f"route: expected one of {', '.join(get_args(Route))}, got {route!r}")
    obstacle = _fused_obstacle(head)
    if route == "fused" and obstacle:
        raise ValueError(f"route='fused': {obstacle}; route='workspace' takes any weight")
    if route != "auto":
        return ways[route]()
    if obstacle or not hidden.is_cuda:
        return ways["workspace"]()
    narrow = hidden.dtype == head.weight.dtype != torch.float32
    if not narrow and _tf32_allowed():
        return ways["fused"]()
    if len(hidden) < ENOUGH_ROWS:
        return ways["workspace"]()
    key = (hidden.device, hidden.dtype, head.weight.dtype, head.weight.shape, ranks)
    with torch.cuda.device(hidden.device):
        name = _routes.fastest(key, ways)
    return ways[name]()


def _fused_obstacle(head: Head) -> str | None:
    """Why the fused kernel cannot read this weight, or None."""
    from grpo_guard.logprob.kernels import triton_launch as launch

    if head.weight.stride(1) != 1 and head.weight.shape[1] > 1:
        return f"head.weight: expected contiguous rows, got strides {tuple(head.weight.stride())}"
    if leader_block(head.vocab_size) > launch.LARGEST_BLOCK:
        most = launch.LARGEST_BLOCK * MOST_LEADERS
        return f"head.weight: expected at most {most} rows, got {head.vocab_size}"
    return None


def _tf32_allowed() -> bool:
    """Whether fp32 products round their operands to TF32, as many trainers allow."""
    matmul: Any = torch.backends.cuda.matmul
    precision = getattr(matmul, "fp32_precision", None)  # torch >= 2.9; the old flag can raise
    return bool(matmul.allow_tf32) if precision is None else precision == "tf32"


def _check(
    hidden: Tensor,
    head: Head,
    targets: Tensor,
    temperature: float,
    eos_ids: Sequence[int],
    interpreted: bool,
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
    # Nothing checks bounds on a GPU: a wild id would read foreign memory.
    lowest, highest = torch.stack([targets.min(), targets.max()]).tolist()
    ids = (lowest, highest, *eos_ids)
    if not (min(ids) >= 0 and max(ids) < head.vocab_size):
        raise ValueError(
            f"targets, eos_ids: expected token ids in [0, {head.vocab_size}), got "
            f"{min(ids)} to {max(ids)}"
        )
