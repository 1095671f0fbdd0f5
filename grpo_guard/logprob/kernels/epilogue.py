"""The epilogue of a score tile: a dozen sums per row, fused into one pass by a compiler.

Eager torch reads a tile a dozen times, which costs as much as the matrix product that produced it.
Compiled, the sums cost about a tenth of that. Compiling takes seconds and needs a C++ compiler, so
it is deferred until the eager sums have cost about as much; if it fails, the eager form stays in
use.
"""

from __future__ import annotations

import functools
import shutil
import threading
import warnings
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import torch

from grpo_guard.logprob.kernels.statistics import tile_sums

Mode: TypeAlias = Literal["auto", "eager", "compiled"]

# Compiling took 12 to 19 s on one core; eager sums cost 11 ns a score more than compiled ones.
WORTH_COMPILING = 1_000_000_000
# With fewer tokens than this, a tile is too small to benefit from the compiled form.
SMALL_VOCABULARY = 8192

_lock = threading.Lock()
_scores_so_far = 0
_compiler_failed = False


def epilogue(mode: Mode, scores: int, vocab_size: int, device: torch.device) -> Callable[..., Any]:
    """Choose the eager or compiled form of `tile_sums` for the next ``scores`` scores; raises
    RuntimeError if ``"compiled"`` was requested but there is no C++ compiler."""
    global _scores_so_far
    if mode not in ("auto", "eager", "compiled"):
        raise ValueError(f"epilogue: expected auto, eager or compiled, got {mode!r}")
    if mode == "compiled":
        if device.type == "cpu" and not has_compiler():
            raise RuntimeError("epilogue='compiled': expected g++ or clang++ on the PATH")
        return _compiled()
    with _lock:
        _scores_so_far += scores
        worth_it = _scores_so_far > WORTH_COMPILING and vocab_size > SMALL_VOCABULARY
    if mode == "eager" or not worth_it or _compiler_failed or not has_compiler():
        return tile_sums
    return _guarded(_compiled())


@functools.cache
def has_compiler() -> bool:
    """Whether torch.compile can build CPU code on this machine."""
    return any(shutil.which(name) for name in ("g++", "clang++"))


def compiled_where_worth_it(
    eager: Callable[..., Any], by_row: int, vocab_size: int, device: torch.device
) -> Callable[..., Any]:
    """Return the tile function ``eager``, compiled as soon as `tile_sums` is; its first ``by_row``
    arguments have one row per token."""
    if epilogue("auto", 0, vocab_size, device) is tile_sums:
        return eager
    return _guarded(_compiled(eager, by_row), eager)


@functools.cache
def _compiled(eager: Callable[..., Any] = tile_sums, by_row: int = 2) -> Callable[..., Any]:
    compiled = torch.compile(eager, dynamic=None)

    def call(*arguments: Any) -> Any:
        if arguments[0].shape[0] == 1:  # a dynamic dimension of 1 would be recompiled
            return eager(*arguments)
        for tensor in arguments[:by_row]:  # batches vary in rows but share a kernel
            torch._dynamo.mark_dynamic(tensor, 0)
        return compiled(*arguments)

    return call


def _guarded(
    compiled: Callable[..., Any], eager: Callable[..., Any] = tile_sums
) -> Callable[..., Any]:
    """Wrap the compiled form; if compilation fails, use the eager form from then on."""

    def call(*arguments: Any) -> Any:
        global _compiler_failed
        if not _compiler_failed:
            try:
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
