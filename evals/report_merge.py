"""Several results files as one: the runs of all of them, each once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo_guard.evals.results import Results, ResultsError, Run, load_results
from grpo_guard.evals.series import conditions

RESULTS = "results.json"


def results_file(place: Path) -> Path:
    """The results file that a folder or a file's own path means."""
    return place if place.suffix == ".json" else place / RESULTS


def load_all(places: Sequence[Path]) -> list[tuple[str, Results]]:
    """Each file's name and content.

    Raises:
        ResultsError: a file is missing or not of the shape.
    """
    files = list(dict.fromkeys(results_file(place) for place in places))
    return [(str(file), load_results(file)) for file in files]


def merged(found: Sequence[tuple[str, Results]]) -> Results:
    """The training runs of all files; a run that stands in several of them counts once.

    Runs of other tasks or policies are kept apart by their conditions. A file whose runs do not
    name theirs has them in its configuration.

    Raises:
        ResultsError: two files have the same run with different results, so that they were made
            with other settings or versions and cannot be pooled.
    """
    runs: dict[Any, tuple[str, Run]] = {}
    for name, results in found:
        for run in results.runs:
            named = _named(run, results.config)
            key = (named.attack, named.defence, conditions(named), named.seed)
            if key not in runs:
                runs[key] = name, named
            elif runs[key][0] != name and runs[key][1].asr != named.asr:
                raise ResultsError(
                    f"{name}: runs: expected the same results as in {runs[key][0]} for attack "
                    f"{run.attack!r}, defence {run.defence!r}, seed {run.seed}, got others; "
                    "report these files apart"
                )
    return Results(runs=[run for _, run in runs.values()])


def _named(run: Run, config: dict[str, Any]) -> Run:
    task = run.task or str(config.get("task", ""))
    model = str(config.get("model", "bundled"))
    policy = run.policy or (task if model == "bundled" else model)  # bundled: named after the task
    return run.model_copy(update={"task": task, "policy": policy})
