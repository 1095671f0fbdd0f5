"""Completions of any length, made of solution steps of real models, for measurements of speed.

All solutions of ``model_solutions.jsonl`` are used once before any is used again; each completion
has its answer at the end. Between completions verifiers remember words and the last thousand sums,
which is less than a batch holds: no round is faster for the one before it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from grpo_guard.core.completion import Completion
from grpo_guard.evals.studies.solutions import Solution, of_models

# With digits and calculator notes a token has 2.2 characters: about 600 tokens.
CHARACTERS: Final = 1100
GROUP: Final = 8
NODES: Final = 4


def completions(
    folder: Path, n: int, seed: int = 0, characters: int = CHARACTERS
) -> list[Completion]:
    """Distinct completions of real steps up to a length, in groups of `GROUP` from `NODES` nodes.

    ``folder`` holds GSM8K; see `solutions`.
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
