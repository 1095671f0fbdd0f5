"""Completions per second of the text stack on Ray's workers, and in one process.

``python -m grpo_guard.evals.studies.ray.scaling --data FOLDER -o docs/results/ray-scaling.json``

`presets.different_weights` over completions of about 300 tokens (`content_speed`), in batches of
256 (``grpo-guard verify`` uses 64): in this process, with one worker and with several. As many
processes as workers, each with its own guard and all rows and without Ray, show how much the
machine can do in parallel.
Wall time; workers are started before, and each round has a new guard. Ratios are within a round,
since the rounds alternate; the verdicts of all forms are compared.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from grpo_guard import presets
from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Verdict
from grpo_guard.evals.studies.content_speed import completions
from grpo_guard.evals.studies.harness import option, say, study
from grpo_guard.server.distributed.ahead import judged, on_ray

CHARACTERS: Final = 480


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass of a new guard: seconds until workers were ready, seconds of the pass, CPU seconds
    of this process in it, and the verdicts."""

    start: float
    wall: float
    cpu: float
    said: list[Verdict]


def passed(rows: Sequence[Completion], workers: int | None, size: int) -> Pass:
    """All rows through a new guard.

    Args:
        rows: What it judges.
        workers: None = this process alone.
        size: Of a batch.
    """
    guard, begun = presets.different_weights(), time.monotonic()
    there = None
    if workers is not None:
        there = on_ray(guard, workers=workers)
        there.verify(rows[: 16 * workers])  # gets one-time work of each worker done
    started, cpu = time.monotonic(), time.process_time()
    try:
        batches = ((i, rows[i : i + size]) for i in range(0, len(rows), size))
        said = [v for _, _, verdicts in judged(guard, batches) for v in verdicts]
        taken = time.monotonic() - started, time.process_time() - cpu
        return Pass(started - begun, *taken, untimed(said))
    finally:
        if there is not None:
            there.close()


def at_once(rows: Sequence[Completion], processes: int, size: int) -> float:
    """Seconds until the last of these processes has judged all rows by itself."""
    spawn = multiprocessing.get_context("spawn")
    together, seconds = spawn.Barrier(processes), spawn.Queue()
    each = [
        spawn.Process(target=_by_itself, args=(rows, size, together, seconds))
        for _ in range(processes)
    ]
    for one in each:
        one.start()
    slowest = max(seconds.get(timeout=600) for _ in each)
    for one in each:
        one.join()
    return float(slowest)


def _by_itself(rows: Sequence[Completion], size: int, together: Any, seconds: Any) -> None:
    presets.different_weights().judge(rows[:16])  # as a worker is warm before it is timed
    together.wait(timeout=300)
    seconds.put(passed(rows, None, size).wall)


def untimed(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts without their times."""
    return [replace(v, seconds=0.0, members=tuple(untimed(v.members))) for v in verdicts]


def measure(data: Path, n: int, rounds: int, workers: int, batch: int) -> dict[str, Any]:
    """Measure each form's completions per second, and the ratios between them."""
    rows = completions(data, n, characters=CHARACTERS)
    forms: dict[str, int | None] = {"in process": None, "1 worker": 1}
    forms[f"{workers} workers"] = workers
    found: dict[str, list[Pass]] = {name: [] for name in forms}
    same, apart = True, list[float]()
    for turn in range(rounds):
        for name, count in forms.items():
            found[name].append(passed(rows, count, batch))
            same = same and found[name][-1].said == found["in process"][0].said
        apart.append(at_once(rows, workers, batch))
        say("rounds", turn + 1, rounds)
    here, one, several = found["in process"], found["1 worker"], found[f"{workers} workers"]
    on_ray = {name: each for name, each in found.items() if forms[name]}
    return {
        "completions": n,
        "batch": batch,
        "rounds": rounds,
        "verdicts": "the same" if same else "different",
        "per_second": {k: _spread([n / one.wall for one in each]) for k, each in found.items()},
        "several_over_one": _ratios(one, several),
        "several_over_in_process": _ratios(here, several),
        "processes_over_one": _spread(
            [workers * one.wall / wall for one, wall in zip(here, apart, strict=True)]
        ),
        "this_process_cpu_us": {
            k: _spread([one.cpu / n * 1e6 for one in each]) for k, each in found.items()
        },
        "seconds_to_start": {k: _spread([one.start for one in e]) for k, e in on_ray.items()},
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def _ratios(slow: Sequence[Pass], fast: Sequence[Pass]) -> dict[str, float]:
    return _spread([s.wall / f.wall for s, f in zip(slow, fast, strict=True)])


if __name__ == "__main__":
    study(
        "ray_scaling",
        measure,
        option("--data", type=Path, required=True, help="folder with GSM8K"),
        option("--n", type=int, default=4_096, help="completions"),
        option("--rounds", type=int, default=5, help="of all forms"),
        option("--batch", type=int, default=256, help="completions that are judged together"),
        option("--workers", type=int, default=2, help="of the last form"),
    )
