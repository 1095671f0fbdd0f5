"""Write the reader's start profile from published answers.

    python -m grpo_guard.evals.training.reader_start FILE ... --reader FOLDER --profile FILE

From each file, up to ``--nodes`` models contribute ``--sentences`` sentences each, drawn at random
from answers that `different_weights` finds nothing wrong with. Each column of the profile holds
evenly spaced quantiles of the sentences' foreignness. Only scores are written, no text.

With ``--held FILE ...``, the study also counts how many sentences from other files the profile
would call foreign at ``--level``.
"""

import json
import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from grpo_guard.core.completion import Completion
from grpo_guard.evals.results import write_text
from grpo_guard.evals.studies.harness import option, rate, say, study
from grpo_guard.evals.studies.rules_corpora import counting_guard, rounds_of, rows_of
from grpo_guard.logprob.reader.foreignness import Foreignness, SpanScorer
from grpo_guard.logprob.reader.honest import column_scores
from grpo_guard.logprob.reader.spans import TextSpan, own_sentences
from grpo_guard.logprob.reference.null import conformal
from grpo_guard.logprob.scorers.load import load_policy
from grpo_guard.logprob.scorers.transformers import TransformersScorer

_QUANTILES: Final = 63


def measure(
    files: Sequence[Path],
    held: Sequence[Path],
    reader: str,
    nodes: int,
    sentences: int,
    level: float,
    profile: Path | None,
) -> dict[str, Any]:
    """Count the held-out sentences that the profile would call foreign, by file."""
    model, tokenizer = load_policy(reader)
    scorer = SpanScorer(TransformersScorer(model), tokenizer)
    scores = [s for file in files for s in _scores(file, scorer, nodes, sentences)]
    at = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    columns = np.quantile(np.array(scores), at, axis=0).T.round(1)
    if profile is not None:
        head = {
            "reader": Path(reader).name,
            "sentences": len(scores),
            "files": [file.stem for file in files],
        }
        rows = ",\n".join(json.dumps(column) for column in columns.tolist())
        write_text(profile, f'{json.dumps(head)[:-1]}, "columns": [\n{rows}\n]}}\n')
    figures: dict[str, Any] = {"sentences": len(scores)}
    for file in held:
        own = _scores(file, scorer, nodes, sentences)
        beyond = [conformal(one[-1], columns[-1].tolist()) <= level for one in own]
        figures[file.stem] = rate(sum(beyond), len(beyond))
    return figures


def _scores(file: Path, scorer: SpanScorer, nodes: int, sentences: int) -> list[tuple[float, ...]]:
    rng = random.Random(file.stem)
    clean = defaultdict[str, list[Completion]](list)
    guard = counting_guard()
    for batch in rounds_of(list(rows_of(file))):
        for row, verdict in zip(batch, guard.review(batch).verdicts, strict=True):
            if not verdict.rejected and not verdict.findings and row.node is not None:
                clean[row.node].append(row)
    spans = list[TextSpan]()
    for node in rng.sample(sorted(clean), min(nodes, len(clean))):
        own = [
            TextSpan(row.trusted_prompt_text, row.text, *place, node)
            for row in clean[node]
            for place in own_sentences(row)
        ]
        spans += rng.sample(own, min(sentences, len(own)))
    say(f"{file.stem}: sentences to read", 0, len(spans))
    return [column_scores(one) for one in scorer.score(spans) if isinstance(one, Foreignness)]


if __name__ == "__main__":
    study(
        "reader-start",
        measure,
        option("files", type=Path, nargs="+", metavar="FILE"),
        option("--held", type=Path, nargs="*", default=[], metavar="FILE"),
        option("--reader", required=True, help="folder or id of the model that reads"),
        option("--nodes", type=int, default=8, help="models of each file"),
        option("--sentences", type=int, default=8, help="sentences of each model"),
        option("--level", type=float, default=0.05, help="most honest text called foreign"),
        option("--profile", type=Path, help="file to write the profile to"),
    )
