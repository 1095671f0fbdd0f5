"""How many completions per second all verifiers without a model take, separately and together.

``python -m grpo_guard.evals.studies.content_speed --data FOLDER -o FILE``

Solution steps of real models from ``model_solutions.jsonl``, combined into completions of about 300
tokens, of about 600, and a few of 32,000 characters, each with its answer at the end. All solutions
are used once before any is used again. With ``--also FILE``, a model's own samples unchanged (JSONL
with ``prompt``, ``text`` and ``reference``). Between completions verifiers remember words and the
last thousand sums, which is less than a batch holds: no round is faster for the one before it. CPU
time of one thread; rounds alternate, and the median of the rounds counts.
"""

from __future__ import annotations

import random
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from grpo_guard import AllOf, ArithmeticVerifier, CodeVerifier, RecurrenceVerifier, ScreensVerifier
from grpo_guard.content.length.verifier import LengthVerifier
from grpo_guard.core.completion import Completion
from grpo_guard.core.jsonl import read_objects
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.evals.studies.harness import option, study
from grpo_guard.evals.studies.solutions import Solution, of_models

# With digits and calculator notes a token has 2.2 characters: SmolLM2's tokenizer makes 302 tokens
# of the 659 characters of the first kind on average, and 589 of the 1,288 of the second.
SIZES: Final = {"steps, about 300 tokens": 480, "steps, about 600 tokens": 1100}
LONG: Final = "steps, about 32,000 characters"
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
    folder: Path, n: int, seed: int = 0, characters: int = CHARACTERS
) -> list[Completion]:
    """Distinct completions of real steps, in groups of `GROUP` from `NODES` nodes.

    Args:
        folder: Folder with GSM8K; see `solutions`.
        n: How many.
        seed: Seed of their order.
        characters: Steps are added up to this length.
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
    """Yield all of them in random order, again and again."""
    while True:
        yield from rng.sample(rows, len(rows))


def samples(path: Path) -> list[Completion]:
    """Read a model's own completions unchanged, in the order of their prompts."""
    rows = [data for _, data in read_objects(path) if data.get("text")]
    rows.sort(key=lambda row: str(row["prompt"]))
    return [
        Completion(row["prompt"], row["text"], node=f"n{i % NODES}", reference=row.get("reference"))
        for i, row in enumerate(rows)
    ]


def lines_distinct(batch: Sequence[Completion]) -> float:
    """Share of a batch's lines that are the first of their kind."""
    lines = [line for completion in batch for line in completion.text.split("\n") if line]
    return len(set(lines)) / len(lines)


def speeds(batch: Sequence[Completion], rounds: int) -> dict[str, dict[str, float]]:
    """Completions per second of CPU time, by verifier: the median of the rounds and its ends."""
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
    ends: dict[str, Callable[[list[float]], float]] = {
        "per_second": statistics.median, "slowest": max, "fastest": min,
    }  # fmt: skip
    return {
        name: {end: round(len(batch) / of(times)) for end, of in ends.items()}
        for name, times in seconds.items()
    }


def measure(data: Path, also: Path | None, n: int, rounds: int) -> dict[str, Any]:
    """Compute all figures."""
    batches = {name: completions(data, n, 0, size) for name, size in SIZES.items()}
    batches[LONG] = completions(data, max(n // 50, GROUP), 0, 31_500)
    if also:
        batches["samples"] = samples(also)
    return {
        name: {
            "completions": len(batch),
            "mean_characters": statistics.mean(len(c.text) for c in batch),
            "distinct_lines": lines_distinct(batch),
            **speeds(batch, rounds),
        }
        for name, batch in batches.items()
    }


if __name__ == "__main__":
    study(
        "content-speed",
        measure,
        option("--data", type=Path, required=True, metavar="FOLDER"),
        option("--also", type=Path, metavar="FILE", help="JSONL with a model's own samples"),
        option("-n", type=int, default=2000),
        option("--rounds", type=int, default=3),
    )
