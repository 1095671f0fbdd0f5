"""Command line of the measurement; an interrupted one goes on where it stopped."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from grpo_guard.evals.results import write_json
from grpo_guard.evals.studies.reference_likelihood.measure import measure
from grpo_guard.evals.studies.reference_likelihood.scores import KeptScores
from grpo_guard.evals.studies.reference_likelihood.sets import items
from grpo_guard.logprob.reference.reading import Reader

CACHE = Path(".measure/reference-likelihood.jsonl")


def main() -> None:
    """Measure, print one line per figure, and write the JSON."""
    parser = argparse.ArgumentParser(description="What the reference-likelihood verifier finds.")
    parser.add_argument("--model", required=True, help="the reference: a folder or a model id")
    parser.add_argument("--data", type=Path, required=True, help="folder with GSM8K's solutions")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where scores are kept")
    parser.add_argument("--profile", type=Path, help="also write the profile there")
    parser.add_argument("-o", "--out", type=Path, help="where to write the JSON")
    arguments = parser.parse_args()

    from grpo_guard.logprob.scorers.load import load_policy
    from grpo_guard.logprob.scorers.transformers import TransformersScorer

    try:
        found = items(arguments.data)
        model, tokenizer = load_policy(arguments.model)
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    reader = Reader(tokenizer, KeptScores(TransformersScorer(model), arguments.cache, _progress))
    encoded = [reader.encode(item.completion) for item in found]
    reader.stats(encoded)  # all at once, so that progress counts all of them
    profile, figures = measure(reader, found)
    sizes = Counter(f"{item.part}: {item.kind}" for item in found)
    results = {
        "command": "python -m grpo_guard.evals.studies.reference_likelihood --model MODEL --data FOLDER",
        "reference": {"name": Path(arguments.model).name, **profile.identity},
        "completions": dict(sizes),
        "tokens": sum(len(e.completion_ids) for e in encoded),
        **figures,
    }
    _print(results)
    if arguments.profile:
        profile.write(arguments.profile)
    if arguments.out:
        write_json(arguments.out, results)


def _progress(done: int, total: int) -> None:
    print(f"scored {done} of {total}", file=sys.stderr, flush=True)


def _print(value: Any, path: str = "") -> None:
    if isinstance(value, dict) and "hits" in value:
        share = f"({value['low']:.1%} to {value['high']:.1%})"
        print(f"{path}: {value['hits']} / {value['total']} {share}")
    elif isinstance(value, dict):
        for key, inner in value.items():
            _print(inner, f"{path} | {key}" if path else key)
    else:
        print(f"{path}: {value}")


if __name__ == "__main__":
    main()
