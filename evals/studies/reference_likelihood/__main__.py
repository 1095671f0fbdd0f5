"""What the reference-likelihood verifier finds and what it costs honest work.

``python -m grpo_guard.evals.studies.reference_likelihood --model MODEL --data FOLDER -o FILE``; an
interrupted measurement goes on where it stopped.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from grpo_guard.evals.studies.harness import CACHE, option, say, study
from grpo_guard.evals.studies.reference_likelihood.measure import figures
from grpo_guard.evals.studies.reference_likelihood.scores import KeptScores
from grpo_guard.evals.studies.reference_likelihood.sets import items
from grpo_guard.logprob.reference.reading import Reader


def measure(model: str, data: Path, cache: Path, profile: Path | None) -> dict[str, Any]:
    """All figures; also writes the profile, where it is asked for."""
    from grpo_guard.logprob.scorers.load import load_policy
    from grpo_guard.logprob.scorers.transformers import TransformersScorer

    found = items(data)
    weights, tokenizer = load_policy(model)
    scorer = KeptScores(TransformersScorer(weights), cache, partial(say, "scored"))
    reader = Reader(tokenizer, scorer)
    encoded = [reader.encode(item.completion) for item in found]
    reader.stats(encoded)  # all at once, so that progress counts all of them
    made, rates = figures(reader, found)
    if profile:
        made.write(profile)
    return {
        "reference": {"name": Path(model).name, **made.identity},
        "completions": dict(Counter(f"{item.part}: {item.kind}" for item in found)),
        "tokens": sum(len(e.completion_ids) for e in encoded),
        **rates,
    }


if __name__ == "__main__":
    study(
        "reference-likelihood",
        measure,
        option("--model", required=True, metavar="MODEL", help="the reference: a folder or an id"),
        option("--data", type=Path, required=True, metavar="FOLDER"),
        option(
            "--cache",
            type=Path,
            default=CACHE / "reference-likelihood.jsonl",
            metavar="FILE",
            help="where scores are kept",
        ),
        option("--profile", type=Path, metavar="FILE", help="also write the profile there"),
    )
