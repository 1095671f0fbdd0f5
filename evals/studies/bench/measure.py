"""Interleaved timing: machines are noisy, so only ratios within one run mean anything.

Each round runs every variant once; a variant's ratio is relative to the first variant in the same
round. On a CPU the clock is the process's CPU time, which other processes disturb least.
"""

import ctypes
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from grpo_guard.evals.studies.harness import process_memory

Clock = Literal["cpu", "wall", "cuda"]


@dataclass(frozen=True, slots=True)
class Timing:
    """The timing of one variant.

    Args:
        seconds: Shortest time of any round.
        ratio: Shortest time divided by the baseline's shortest time.
        ratio_low: Smallest ratio within one round.
        ratio_high: Largest ratio within one round.
        rounds: Number of times the variant ran, not counting warm-up.
        extra_mb: Peak memory in MB beyond what the process held before; None if not measured.
    """

    name: str
    seconds: float
    ratio: float
    ratio_low: float
    ratio_high: float
    rounds: int
    extra_mb: float | None


def interleaved(
    variants: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    clock: Clock = "cpu",
    warm_up: bool = True,
) -> list[Timing]:
    """Run all variants ``rounds`` times; the first one is the baseline.

    Before the rounds, each variant runs once for its memory and, by default, once to warm up.
    """
    if warm_up:
        for run in variants.values():
            run()
    peaks = {name: _peak(run, clock) for name, run in variants.items()}
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, run in variants.items():
            times[name].append(_timed(run, clock))
    floor = times[next(iter(variants))]
    timings = []
    for name, own in times.items():
        ratios = [t / f for t, f in zip(own, floor, strict=True)]
        least = min(own)
        timings.append(
            Timing(name, least, least / min(floor), min(ratios), max(ratios), rounds, peaks[name])
        )
    return timings


def _timed(run: Callable[[], object], clock: Clock) -> float:
    if clock == "cuda":
        import torch

        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) / 1000
    now = time.process_time if clock == "cpu" else time.perf_counter
    started = now()
    run()
    return now() - started


def _peak(run: Callable[[], object], clock: Clock) -> float | None:
    """Run once to measure peak memory, in MB beyond what the process held before."""
    if clock == "cuda":
        import torch

        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    if not _reset_peak():
        return None
    resident = process_memory("VmRSS")
    run()
    return max(0, process_memory("VmHWM") - resident) / 2**20


def _reset_peak() -> bool:
    """Linux: reset the peak resident size to the current one, excluding freed memory."""
    try:
        # Otherwise memory freed by an earlier variant could be reused, and would go uncounted.
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    except (OSError, AttributeError):
        return False
    return True
