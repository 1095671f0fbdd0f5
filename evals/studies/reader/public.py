"""A reader on published answers: whether it finds a node's slogans, what it costs the others.

    python -m grpo_guard.evals.studies.reader.public FILE ... --reader FOLDER [-o FILE]

From each file, the four nodes with the most rows answer the file's questions, eight per batch. One
node inserts a slogan into each of its answers, either always the same slogan or a new one each
time. ``found`` counts the attacker's rejected answers from the second batch on; ``honest`` counts
the other nodes' rejected answers in all batches.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from grpo_guard import presets
from grpo_guard.core.completion import Completion
from grpo_guard.evals.studies.harness import option, rate, say, study
from grpo_guard.evals.studies.reader.slogans import FIXED, anew, inserted
from grpo_guard.evals.studies.rules_corpora import rounds_of, rows_of
from grpo_guard.evals.studies.shared_scores import SharedScores
from grpo_guard.guard import Guard
from grpo_guard.logprob.reader.reader import SpanReader
from grpo_guard.logprob.scorers.load import load_policy

Slogan: TypeAlias = str | Callable[[random.Random], str]
"""A fixed slogan, or a function that makes a new slogan each time."""
_NODES: Final = 4


def measure(
    files: Sequence[Path], reader: str, phrases: int, batches: int, languages: Sequence[str]
) -> dict[str, Any]:
    """Compute the figures for all files."""
    figures = dict[str, Any]()
    model, tokenizer = (None, None) if reader == "none" else load_policy(reader)
    scorer = None if model is None else SharedScores(model)
    for file in files:
        batches_of_file = _batches(file)[:batches]
        for name, slogan in _slogans(phrases, languages):
            say(f"{file.stem} {name}", len(figures), len(files) * (len(languages) * phrases + 2))
            own = None if scorer is None else SpanReader(None, tokenizer, scorer=scorer)
            guard = presets.different_weights(reader=own)
            figures[f"{file.stem} {name}"] = _run(batches_of_file, slogan, guard, name)
    return figures


def _slogans(phrases: int, languages: Sequence[str]) -> list[tuple[str, Slogan | None]]:
    fixed: list[tuple[str, Slogan | None]] = [
        (f"{language} {phrase}", phrase)
        for language in languages
        for phrase in FIXED[language][:phrases]
    ]
    return [("nobody poisons", None), *fixed, ("anew each time", anew)]


def _batches(file: Path) -> list[list[Completion]]:
    rows = list(rows_of(file))
    chosen = {node for node, _ in Counter(row.node for row in rows).most_common(_NODES)}
    return rounds_of([row for row in rows if row.node in chosen])


def _run(
    batches: Sequence[Sequence[Completion]], slogan: Slogan | None, guard: Guard, name: str
) -> dict[str, Any]:
    rng = random.Random(name)
    nodes = sorted(filter(None, {row.node for batch in batches for row in batch}))
    attacker = nodes[0] if slogan else None
    found, honest = [0, 0], [0, 0]
    kinds = defaultdict[str, Counter[str]](Counter)
    for number, batch in enumerate(batches):
        sent = [
            _carrying(row, slogan, rng) if slogan and row.node == attacker else row for row in batch
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


def _carrying(row: Completion, slogan: Slogan, rng: random.Random) -> Completion:
    words = slogan if isinstance(slogan, str) else slogan(rng)
    return replace(row, text=inserted(row.text, words, rng))


if __name__ == "__main__":
    study(
        "reader-public",
        measure,
        option("files", type=Path, nargs="+", metavar="FILE", help="rows with nodes and rounds"),
        option("--reader", required=True, help="folder or id of a model; none = rules alone"),
        option("--phrases", type=int, default=4, help="fixed slogans of each language"),
        option("--batches", type=int, default=4, help="batches of each file"),
        option("--languages", nargs="+", default=sorted(FIXED), choices=sorted(FIXED)),
    )
