"""How long a trainer waits for a review if texts are read as they arrive (`Guard.read_early`).

``python -m grpo_guard.evals.studies.arrival --data FOLDER -o docs/results/arrival.json``

Traces of 27,000 characters, assembled from steps written by real models (`workers.traces`), arrive
one by one at equal intervals, and the review begins when the last trace has arrived.
`presets.different_weights` reviews the traces, with and without reading early, in this process and
in worker processes started beforehand. Rounds alternate between these variants, each with a new
guard; ratios are taken within a round, and the verdicts of all variants are compared.
"""

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_guard import presets
from grpo_guard.core.completion import Completion
from grpo_guard.evals.studies.harness import option, say, study
from grpo_guard.evals.studies.workers import GROUP, TRACE, ends, traces, untimed


@dataclass(frozen=True, slots=True)
class Pass:
    """One review by a new guard: the seconds spent waiting for it, the share of texts that had been
    read early, and the verdicts."""

    wait: float
    early: float
    verdicts: list[Any]


def passed(rows: Sequence[Completion], seconds: float, *, workers: int, early: bool) -> Pass:
    """With a new guard, review rows that arrive over ``seconds``; ``early`` reads each at once."""
    guard = presets.different_weights(workers=workers)
    guard.review(rows[: GROUP * max(1, workers)])  # so that each process has done its one-off work
    begun = time.monotonic()
    for i, row in enumerate(rows):
        time.sleep(max(0.0, begun + seconds * i / max(1, len(rows) - 1) - time.monotonic()))
        if early:
            guard.read_early([row])
    review = guard.review(rows)
    guard.workers.close()
    figures = review.metrics
    verdicts = [untimed(verdict.to_dict()) for verdict in review.verdicts]
    return Pass(figures["guard/wait_seconds"], figures.get("guard/read_early_rate", 0.0), verdicts)


def compared(
    rows: Sequence[Completion], seconds: float, rounds: int, workers: int
) -> dict[str, Any]:
    """Compare the waits with and without reading early, over all rounds and within each round."""
    found: dict[bool, list[Pass]] = {False: [], True: []}
    for turn in range(rounds):
        for early in found:
            found[early].append(passed(rows, seconds, workers=workers, early=early))
        say("rounds", turn + 1, rounds)
    everything = [each.verdicts for passes in found.values() for each in passes]
    pairs = zip(found[True], found[False], strict=True)
    return {
        "same_verdicts": all(each == everything[0] for each in everything),
        "rejected": sum(one["outcome"] == "reject" for one in everything[0]),
        "wait": {
            "with the batch": ends([each.wait for each in found[False]]),
            "early": ends([each.wait for each in found[True]]),
        },
        "early over with the batch": ends([a.wait / b.wait for a, b in pairs]),
        "read early": ends([each.early for each in found[True]]),
    }


def measure(data: Path, n: int, seconds: float, rounds: int, workers: int) -> dict[str, Any]:
    """Compute all figures."""
    rows = traces(data, n)
    return {
        "load": os.getloadavg()[0],
        "cores": len(os.sched_getaffinity(0)),
        "completions": len(rows),
        "mean_characters": statistics.mean(len(row.text) for row in rows),
        "arrive_over": seconds,
        f"{TRACE:,} characters, in process": compared(rows, seconds, rounds, 0),
        f"{TRACE:,} characters, {workers} workers": compared(rows, seconds, rounds, workers),
    }


if __name__ == "__main__":
    study(
        "arrival",
        measure,
        option("--data", type=Path, required=True, metavar="FOLDER"),
        option("-n", type=int, default=64, help="traces"),
        option("--seconds", type=float, default=10.0, help="from the first to the last"),
        option("--rounds", type=int, default=3),
        option("--workers", type=int, default=2),
    )
