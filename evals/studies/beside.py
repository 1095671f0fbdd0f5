"""Scoring next to busy processes: seconds against the fair share, by how the threads wait.

    python -m grpo_guard.evals.studies.beside

A neighbour trains a small network without pause, on as many threads as torch uses. With k of them
the fair share of the machine is 1 / (k + 1), so scoring may take k + 1 times its seconds alone;
``beside`` is the actual time over that. Writes ``docs/results/beside.json``.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.queues import SimpleQueue
from typing import Any, Final

from grpo_guard.evals.studies.detection import MODEL, SPEC
from grpo_guard.evals.studies.harness import RESULTS, option, say, study

SPAWN: Final = multiprocessing.get_context("spawn")
WAYS: Final = (("spinning", None, None), ("passive", "PASSIVE", None), ("one thread", None, 1))
"""Name, ``OMP_WAIT_POLICY``, ``threads=`` of the scorer."""


def measure(n: int, most: int, repeats: int) -> dict[str, Any]:
    """Medians over ``repeats`` rounds that time each way with 0 to ``most`` neighbours.

    Args:
        n: Completions per batch, of 100 tokens after a prompt of 60.
        most: Largest number of neighbours.
        repeats: Rounds.
    """
    seconds: dict[tuple[str, int], list[float]] = {}
    for done in range(repeats):
        for neighbours in range(most + 1):
            with _busy(neighbours):
                for name, wait, threads in WAYS:
                    taken = _seconds(n, wait, threads)
                    seconds.setdefault((name, neighbours), []).append(taken)
        say("rounds", done + 1, repeats)
    found: dict[str, Any] = {"completions": n, "cores": os.cpu_count(), "rounds": repeats}
    for name, _, _ in WAYS:
        alone = statistics.median(seconds[name, 0])
        found[name] = {"alone, seconds": round(alone, 2)} | {
            f"beside {k}": round(statistics.median(seconds[name, k]) / alone / (k + 1), 2)
            for k in range(1, most + 1)
        }
    return found


def _seconds(n: int, wait: str | None, threads: int | None) -> float:
    """Time one batch in its own process, since importing torch determines how threads wait."""
    answer: SimpleQueue[float] = SPAWN.SimpleQueue()
    before = os.environ.pop("OMP_WAIT_POLICY", None)
    os.environ |= {"OMP_WAIT_POLICY": wait} if wait else {}
    try:
        scoring = SPAWN.Process(target=_score, args=(n, threads, answer))
        scoring.start()
        scoring.join()
    finally:
        os.environ.pop("OMP_WAIT_POLICY", None)
        os.environ |= {"OMP_WAIT_POLICY": before} if before else {}
    if scoring.exitcode:
        raise OSError(f"scoring ended with {scoring.exitcode}")
    return answer.get()


def _score(n: int, threads: int | None, answer: SimpleQueue[float]) -> None:
    import torch

    from grpo_guard.evals.detect.config import load
    from grpo_guard.logprob.encode import Encoded
    from grpo_guard.logprob.scorers.transformers import TransformersScorer

    scorer = TransformersScorer(load(MODEL, "float32").model, threads=threads)
    drawn = torch.Generator().manual_seed(0)
    ids = torch.randint(100, 40_000, (n, 160), generator=drawn).tolist()
    rows = [Encoded(tuple(row[:60]), tuple(row[60:]), False) for row in ids]
    scorer.score(rows[:2], SPEC)
    started = time.monotonic()
    scorer.score(rows, SPEC)
    answer.put(time.monotonic() - started)


@contextmanager
def _busy(neighbours: int) -> Iterator[None]:
    """Run this many training processes until the block is left, after their first steps."""
    started = SPAWN.Semaphore(0)
    running = [SPAWN.Process(target=_train, args=(started,)) for _ in range(neighbours)]
    for process in running:
        process.start()
    for _ in running:
        started.acquire(timeout=120)
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.join()


def _train(started: Any) -> None:
    import torch

    net = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(4)))
    optimiser = torch.optim.SGD(net.parameters(), lr=1e-4)
    batch, steps = torch.randn(128, 1024), 0
    while True:
        optimiser.zero_grad()
        net(batch).square().mean().backward()
        optimiser.step()
        steps += 1
        if steps == 5:
            started.release()


if __name__ == "__main__":
    study(
        "beside",
        measure,
        option("--n", type=int, default=16, help="completions of a batch"),
        option("--most", type=int, default=3, help="neighbours"),
        option("--repeats", type=int, default=3, help="rounds"),
        out=RESULTS / "beside.json",
    )
