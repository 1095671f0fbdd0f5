"""How many completions a second all verifiers without a model take, one by one and together.

``python -m grpo_guard.evals.studies.content_speed --data FOLDER -o docs/results/content-speed.json``

Solution steps of real models from ``model_solutions.jsonl``, put together to completions of about
300 and of about 600 tokens, each with its answer at the end. Each solution is used before one is
used again. With ``--also FILE``, a model's own samples as they are (JSONL with ``prompt``, ``text``
and ``reference``). No verifier remembers anything from one completion to the next that could make
it faster. CPU time of one thread; rounds take turns, and the median of the rounds counts.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
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
from grpo_guard.evals.results import versions
from grpo_guard.jsonl import read_objects
from grpo_guard.verifier import CompletionVerifier

# With digits and calculator notes a token has 2.2 characters: SmolLM2's tokenizer makes 302 tokens
# of the 659 characters of the first kind on average, and 589 of the 1,288 of the second.
SIZES: Final = {"steps, about 300 tokens": 480, "steps, about 600 tokens": 1100}
CHARACTERS: Final = SIZES["steps, about 600 tokens"]
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


def completions(
    path: Path, n: int, seed: int = 0, characters: int = CHARACTERS
) -> list[Completion]:
    """Distinct completions of real steps, in groups of `GROUP` from `NODES` nodes.

    Args:
        path: ``model_solutions.jsonl``.
        n: How many.
        seed: Of their order.
        characters: Steps are added until a completion has as many.
    """
    rng = random.Random(seed)
    rows = [data for _, data in read_objects(path)]
    solutions = _in_turns(rows, rng)
    batch = []
    for i in range(n):
        row = rows[(i // GROUP * 7) % len(rows)]
        parts: list[str] = []
        while sum(map(len, parts)) < characters:
            text = next(solutions)["completion"]
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


def _in_turns(rows: Sequence[dict[str, Any]], rng: random.Random) -> Iterator[dict[str, Any]]:
    """All of them in random order, again and again."""
    while True:
        yield from rng.sample(rows, len(rows))


def samples(path: Path) -> list[Completion]:
    """A model's own completions, as they are, in the order of their prompts."""
    rows = [data for _, data in read_objects(path) if data.get("text")]
    rows.sort(key=lambda row: str(row["prompt"]))
    return [
        Completion(row["prompt"], row["text"], node=f"n{i % NODES}", reference=row.get("reference"))
        for i, row in enumerate(rows)
    ]


def lines_distinct(batch: Sequence[Completion]) -> float:
    """Share of the lines that are the first of their kind in a batch."""
    lines = [line for completion in batch for line in completion.text.split("\n") if line]
    return len(set(lines)) / len(lines)


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
    parser.add_argument("--also", type=Path, help="JSONL with a model's own samples")
    parser.add_argument("-n", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-o", "--out", type=Path)
    options = parser.parse_args()
    path = options.data / "model_solutions.jsonl"
    batches = {name: completions(path, options.n, 0, size) for name, size in SIZES.items()}
    if options.also and options.also.is_file():
        batches["samples"] = samples(options.also)
    sets: list[dict[str, Any]] = []
    for name, batch in batches.items():
        rows = measure(batch, options.rounds)
        sets.append(
            {
                "set": name,
                "completions": len(batch),
                "mean_characters": statistics.mean(len(c.text) for c in batch),
                "distinct_lines": lines_distinct(batch),
                "rows": rows,
            }
        )
        print(f"{name}: {len(batch)} of {sets[-1]['mean_characters']:,.0f} characters")
        for row in rows:
            span = f"{row['low']:,.0f}-{row['high']:,.0f}"
            print(f"{row['verifier']:14} {row['per_second']:9,.0f} /s  ({span})")
    found = {
        "kind": "content-speed",
        "command": "python -m grpo_guard.evals.studies.content_speed",
        "rounds": options.rounds,
        "versions": versions(),
        "sets": sets,
    }
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
