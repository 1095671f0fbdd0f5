"""A reader on published answers: slogans by one of four nodes, and what all four pay.

    python -m grpo_guard.evals.studies.reader.public FILE ... --reader FOLDER [-o FILE]

From each file, the four nodes with the most rows answer its questions, eight a batch. One of them
puts a slogan into each of its answers: the same one always, or another each time. ``found`` counts
its answers from the second batch on; ``honest`` counts the other nodes' answers, of all batches.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from grpo_guard import presets
from grpo_guard.completion import Completion
from grpo_guard.evals.studies.harness import option, rate, say, study
from grpo_guard.evals.studies.public_cost import rounds_of, rows_of
from grpo_guard.evals.studies.reader.slogans import FIXED, anew, inserted
from grpo_guard.guard import Guard

Slogan: TypeAlias = Callable[[random.Random], str]
_NODES: Final = 4


def measure(files: Sequence[Path], reader: str, phrases: int, batches: int) -> dict[str, Any]:
    """Figures of all files.

    Args:
        files: Of completions with nodes and rounds.
        reader: Folder or id of the model that reads; "none" = text rules alone.
        phrases: Fixed slogans of each language that are tried.
        batches: Of each file.
    """
    figures = dict[str, Any]()
    for file in files:
        batches_of_file = _batches(file)[:batches]
        for name, slogan in _slogans(phrases):
            say(f"{file.stem} {name}", len(figures), len(files) * (5 * phrases + 1))
            figures[f"{file.stem} {name}"] = _run(batches_of_file, slogan, _guard(reader), name)
    return figures


def _slogans(phrases: int) -> list[tuple[str, Slogan]]:
    fixed = [
        (f"{language} {phrase}", lambda _rng, phrase=phrase: phrase)
        for language, all_of_them in FIXED.items()
        for phrase in all_of_them[:phrases]
    ]
    return [*fixed, ("anew each time", anew)]


def _guard(reader: str) -> Guard:
    return presets.different_weights(reader=None if reader == "none" else reader)


def _batches(file: Path) -> list[list[Completion]]:
    rows = list(rows_of(file))
    chosen = {node for node, _ in Counter(row.node for row in rows).most_common(_NODES)}
    return rounds_of([row for row in rows if row.node in chosen])


def _run(
    batches: Sequence[Sequence[Completion]], slogan: Slogan, guard: Guard, name: str
) -> dict[str, Any]:
    rng = random.Random(name)
    attacker = min(filter(None, {row.node for batch in batches for row in batch}))
    found, honest = [0, 0], [0, 0]
    kinds = defaultdict[str, Counter[str]](Counter)
    for number, batch in enumerate(batches):
        sent = [
            replace(row, text=inserted(row.text, slogan(rng), rng)) if row.node == attacker else row
            for row in batch
        ]
        for row, verdict in zip(sent, guard.review(sent).verdicts, strict=True):
            hostile = row.node == attacker
            if verdict.rejected:
                kind = verdict.findings[0].kind if verdict.findings else verdict.cause.value
                kinds["found" if hostile else "honest"][kind] += 1
            counts = found if hostile else honest
            if not hostile or number:
                counts[0] += verdict.rejected
                counts[1] += 1
    return {
        "found": rate(*found),
        "honest": rate(*honest),
        "kinds": {whose: dict(of) for whose, of in kinds.items()},
    }


def main() -> None:
    """The command line."""
    study(
        "reader-public",
        measure,
        option("files", type=Path, nargs="+", metavar="FILE"),
        option("--reader", required=True, help="folder or id of a model; none = rules alone"),
        option("--phrases", type=int, default=4, help="fixed slogans of each language"),
        option("--batches", type=int, default=4),
    )


if __name__ == "__main__":
    main()
