"""The speed-up from reading texts in several processes (`Guard.workers`).

``python -m grpo_guard.evals.studies.workers --data FOLDER -o docs/results/workers.json``

`presets.different_weights` reviews two batches: GSM8K's own answers, and traces of 27,000
characters assembled from steps written by real models (`completions`), in groups of eight from four
nodes. Each batch is one call to `Guard.review`: in this process, with one worker, and with several.
Processes are started before the measurement. Rounds alternate between these variants, each with a
new guard; ratios are taken within a round, and the verdicts of all variants are compared.

Wall time depends on what else the machine is doing, so CPU seconds are counted as well, for this
process and for each worker. ``critical`` is the sum of this process's and the busiest worker's
seconds, which is how long the batch takes if every process has its own core.

``training`` is the speed of a process that trains on one thread during the review, relative to its
speed before and after.
"""

import os
import random
import re
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any, Final

from grpo_guard import Guard, presets
from grpo_guard.core.completion import Completion
from grpo_guard.core.jsonl import read_objects
from grpo_guard.evals.studies.harness import option, process_memory, say, study
from grpo_guard.evals.studies.solutions import Solution, of_models

# With digits and calculator notes, a token has 2.2 characters: about 600 tokens.
CHARACTERS: Final = 1100
GROUP: Final = 8
NODES: Final = 4
TRACE: Final = 27_000
LONG_TEXT: Final = 10_000
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Pass:
    """One review by a new guard: the busiest worker's CPU seconds until it was ready; then, for the
    review, wall seconds, CPU seconds of this process and of each worker, and the verdicts."""

    start: float
    wall: float
    here: float
    workers: tuple[float, ...]
    verdicts: list[Any]

    @property
    def critical(self) -> float:
        """Seconds that the review would take if every process had its own core."""
        return self.here + max(self.workers, default=0.0)


def completions(
    folder: Path, n: int, seed: int = 0, characters: int = CHARACTERS
) -> list[Completion]:
    """Make distinct completions from real steps, in groups of `GROUP` from `NODES` nodes.

    Each completion has at least ``characters`` characters and its answer at the end. All model
    solutions are used once before any is reused. Verifiers remember words and the last four
    thousand sums from one completion to the next; a batch holds more than that, so that no round is
    faster because of the previous one.
    """
    rng = random.Random(seed)
    rows = of_models(folder)
    solutions = _in_turns(rows, rng)
    batch = []
    for i in range(n):
        row = rows[(i // GROUP * 7) % len(rows)]
        parts: list[str] = []
        while sum(map(len, parts)) < characters:
            text = next(solutions).text
            parts.append(re.split(r"\n(?:A:|####)", text)[0].strip())
        answer = row.answer.replace(",", "")
        batch.append(
            Completion(
                f"{i // GROUP}. {row.question}",
                "\n".join(parts) + f"\n#### {answer}",
                node=f"n{i % NODES}",
                group=i // GROUP,
                reference=answer,
            )
        )
    return batch


def _in_turns(rows: Sequence[Solution], rng: random.Random) -> Iterator[Solution]:
    """Yield all solutions in random order, again and again."""
    while True:
        yield from rng.sample(rows, len(rows))


def answers(folder: Path, n: int) -> list[Completion]:
    """Return GSM8K's own answers to ``n`` training questions."""
    rows = [row for _, row in read_objects(folder / "train.jsonl")][:n]
    return [
        Completion(row["question"], row["answer"], node=f"n{i % NODES}")
        for i, row in enumerate(rows)
    ]


def traces(folder: Path, n: int) -> list[Completion]:
    """Return ``n`` completions whose texts have `TRACE` characters."""
    return [c.with_labels(text=c.text[:TRACE]) for c in completions(folder, n, characters=TRACE)]


def passed(rows: Sequence[Completion], workers: int) -> Pass:
    """Review rows with a new guard and time the review."""
    guard = presets.different_weights(workers=workers)
    guard.review(rows[: GROUP * max(1, workers)])  # gets each process's one-off work done
    numbers = guard.workers.pids
    before = [_cpu(pid) for pid in numbers]
    started, here = time.perf_counter(), time.process_time()
    review = guard.review(rows)
    wall, here = time.perf_counter() - started, time.process_time() - here
    there = tuple(_cpu(pid) - b for pid, b in zip(numbers, before, strict=True))
    guard.workers.close()
    start = max(before, default=0.0)
    verdicts = [untimed(verdict.to_dict()) for verdict in review.verdicts]
    return Pass(start, wall, here, there, verdicts)


def _cpu(pid: int) -> float:
    """Return the CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def untimed(verdict: dict[str, Any]) -> dict[str, Any]:
    """Return a verdict without the time it took, so that verdicts can be compared."""
    return verdict | {"seconds": 0, "members": [untimed(one) for one in verdict["members"]]}


def compared(rows: Sequence[Completion], rounds: int, workers: int) -> dict[str, Any]:
    """Compare the variants: seconds over all rounds, ratios within rounds; median and range."""
    forms = {"in process": 0, "1 worker": 1, f"{workers} workers": workers}
    found: dict[str, list[Pass]] = {name: [] for name in forms}
    for turn in range(rounds):
        for name, count in forms.items():
            found[name].append(passed(rows, count))
        say("rounds", turn + 1, rounds)
    one, several = found["1 worker"], found[f"{workers} workers"]
    everything = [each.verdicts for passes in found.values() for each in passes]
    kinds: dict[str, Callable[[Pass], float]] = {
        "wall": lambda each: each.wall, "critical": lambda each: each.critical,
    }  # fmt: skip
    return {
        "completions": len(rows),
        "mean_characters": statistics.mean(len(c.text) for c in rows),
        "same_verdicts": all(each == everything[0] for each in everything),
        "seconds": {
            name: {kind: ends([of(each) for each in passes]) for kind, of in kinds.items()}
            for name, passes in found.items()
        },
        f"{workers} over 1": {
            kind: ends([of(a) / of(b) for a, b in zip(one, several, strict=True)])
            for kind, of in kinds.items()
        },
        "start": ends([each.start for each in several]),
        "megabytes": _resident(workers),
    }


def ends(values: Sequence[float]) -> dict[str, float]:
    """Return the median, the minimum and the maximum."""
    return {
        "median": round(statistics.median(values), 3),
        "least": round(min(values), 3),
        "most": round(max(values), 3),
    }


def _resident(workers: int) -> float:
    """Return the largest worker's memory after a review, in megabytes."""
    guard: Guard = presets.different_weights(workers=workers)
    guard.review([Completion("q", f"{i} + {i} = {2 * i}", node="n") for i in range(64)])
    most = max(process_memory("VmRSS", pid) for pid in guard.workers.pids)
    guard.workers.close()
    return round(most / 1e6, 1)


def once(rows: Sequence[Completion], workers: int) -> dict[str, Any]:
    """Time one review, and report the machine's load along with it."""
    one = passed(rows, workers)
    seconds = {"wall": round(one.wall, 1), "critical": round(one.critical, 1)}
    return {"completions": len(rows), "load": os.getloadavg()[0], **seconds}


_TRAINING: Final = """
import sys, torch
torch.set_num_threads(1)
layers = [torch.nn.Linear(512, 512) for _ in range(6)]
model, steps = torch.nn.Sequential(*layers), 0
optimizer, inputs = torch.optim.AdamW(model.parameters()), torch.randn(64, 512)
while True:
    loss = (model(inputs) - inputs).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    steps += 1
    print(steps, flush=True)
"""
_ALONE: Final = 8.0  # seconds


def next_to_training(rows: Sequence[Completion], workers: int, rounds: int) -> dict[str, Any]:
    """Time reviews next to a process that trains, and measure how much speed that one keeps."""
    shares: list[float] = []
    seconds: list[float] = []
    with Popen([sys.executable, "-c", _TRAINING], stdout=PIPE) as training:
        output, steps = training.stdout, [0]
        assert output is not None

        def count() -> None:
            for line in output:
                steps[0] = int(line)

        threading.Thread(target=count, daemon=True).start()

        def speed(work: Callable[[], None]) -> float:
            before, started = steps[0], time.perf_counter()
            work()
            return (steps[0] - before) / (time.perf_counter() - started)

        def alone() -> None:
            time.sleep(_ALONE)

        def review() -> None:
            seconds.append(passed(rows, workers).wall)

        while not steps[0]:
            time.sleep(0.1)
        before = speed(alone)
        for _ in range(rounds):
            during, after = speed(review), speed(alone)
            shares.append(2 * during / (before + after))
            before = after
        training.kill()
    return {"workers": workers, "share of its speed": ends(shares), "seconds": ends(seconds)}


def slowest(folder: Path, rounds: int) -> dict[str, Any]:
    """Find the long published text with the slowest review, in CPU seconds of this process."""
    rows = [row for file in sorted(folder.glob("*.jsonl")) for _, row in read_objects(file)]
    texts = [row["text"] for row in rows if len(row.get("text") or "") >= LONG_TEXT]
    guard = presets.different_weights(workers=0)
    guard.review([Completion("q", "2 + 2 = 4")])  # gets one-off work done

    def seconds(text: str) -> float:
        started = time.process_time()
        guard.review([Completion("q", text)])
        return time.process_time() - started

    most = sorted(texts, key=seconds)[-8:]
    found = [(statistics.median(seconds(text) for _ in range(rounds)), text) for text in most]
    longest, text = max(found)
    return {"texts": len(texts), "characters": len(text), "seconds": round(longest, 3)}


def measure(
    data: Path,
    public: Path | None,
    n: int,
    long: int,
    many: int,
    rounds: int,
    workers: int,
) -> dict[str, Any]:
    """Compute all figures."""
    half = max(1, workers // 2)
    long_rows = traces(data, 4 * long)
    return {
        "slowest public text": slowest(public, rounds) if public else None,
        "training": [next_to_training(long_rows, count, rounds) for count in (half, workers)],
        "many traces": once(traces(data, many), workers) if many else None,
        "load": os.getloadavg()[0],
        "cores": len(os.sched_getaffinity(0)),
        "GSM8K answers": compared(answers(data, n), rounds, workers),
        f"traces of {TRACE:,} characters": compared(traces(data, long), rounds, workers),
    }


if __name__ == "__main__":
    study(
        "workers",
        measure,
        option("--data", type=Path, required=True, metavar="FOLDER"),
        option("--public", type=Path, metavar="FOLDER", help="published answers"),
        option("-n", type=int, default=4096, help="GSM8K answers"),
        option("--long", type=int, default=128, help="traces"),
        option("--many", type=int, default=1024, help="traces of one large batch; 0 = none"),
        option("--rounds", type=int, default=5),
        option("--workers", type=int, default=2),
    )
