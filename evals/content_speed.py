"""How many completions a second all verifiers without a model take, one by one and together.

``python -m grpo_guard.evals.content_speed --data FOLDER -o docs/benchmarks/content.json``

Completions of about 300 tokens: solution steps of real models from ``model_solutions.jsonl``, put
together until they have 1,100 characters, each with its answer at the end. CPU time of one thread;
rounds take turns, and the median of the rounds counts.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from grpo_guard import (
    AllOf,
    ArithmeticVerifier,
    CodeVerifier,
    LengthVerifier,
    RecurrenceVerifier,
    ScreensVerifier,
)
from grpo_guard.completion import Completion
from grpo_guard.evals.versions import versions
from grpo_guard.jsonl import read_objects
from grpo_guard.verifier import CompletionVerifier

CHARACTERS: Final = 1100
GROUP: Final = 8
NODES: Final = 4
MAKERS: Final[dict[str, Callable[[], CompletionVerifier]]] = {
    "screens": ScreensVerifier,
    "arithmetic": ArithmeticVerifier,
    "code": CodeVerifier,
    "length": LengthVerifier,
    "recurrence": RecurrenceVerifier,
}
TOGETHER: Final = "all together"


def completions(path: Path, n: int, seed: int = 0) -> list[Completion]:
    """Distinct completions of real steps, in groups of `GROUP` from `NODES` nodes.

    Args:
        path: ``model_solutions.jsonl``.
        n: How many.
        seed: Of their order.
    """
    rng = random.Random(seed)
    rows = [data for _, data in read_objects(path)]
    batch = []
    for i in range(n):
        row = rows[(i // GROUP * 7) % len(rows)]
        parts: list[str] = []
        while sum(map(len, parts)) < CHARACTERS:
            text = rng.choice(rows)["completion"]
            parts.append(re.split(r"\n(?:A:|####)", text)[0].strip())
        answer = re.findall(r"-?[0-9]+", row["ground_truth"])[-1]
        batch.append(
            Completion(
                f"{i // GROUP}. {row['question']}",
                "\n".join(parts) + f"\n#### {answer}",
                node=f"n{i % NODES}",
                group=i // GROUP,
                reference=answer,
            )
        )
    return batch


def measure(batch: Sequence[Completion], rounds: int) -> list[dict[str, Any]]:
    """Completions per second of CPU time, by verifier."""
    makers = dict(MAKERS)
    makers[TOGETHER] = lambda: AllOf(*(make() for make in MAKERS.values()))
    seconds: dict[str, list[float]] = {name: [] for name in makers}
    for make in makers.values():
        make().verify(batch[: 8 * GROUP])  # tables and patterns are built once per process
    for _ in range(rounds):
        for name, make in makers.items():
            verifier = make()  # a new one: nothing is remembered from the last round
            started = time.process_time()
            verifier.verify(batch)
            seconds[name].append(time.process_time() - started)
    return [
        {
            "verifier": name,
            "per_second": len(batch) / statistics.median(times),
            "low": len(batch) / max(times),
            "high": len(batch) / min(times),
        }
        for name, times in seconds.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the model solutions")
    parser.add_argument("-n", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-o", "--out", type=Path)
    options = parser.parse_args()
    batch = completions(options.data / "model_solutions.jsonl", options.n)
    length = statistics.mean(len(c.text) for c in batch)
    rows = measure(batch, options.rounds)
    for row in rows:
        span = f"{row['low']:,.0f}-{row['high']:,.0f}"
        print(f"{row['verifier']:14} {row['per_second']:9,.0f} /s  ({span})")
    found = {
        "kind": "content-speed",
        "command": "python -m grpo_guard.evals.content_speed",
        "completions": len(batch),
        "mean_characters": length,
        "rounds": options.rounds,
        "versions": versions(),
        "rows": rows,
    }
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
