"""Combines several results files: merges their training runs and pools their detections."""

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo_guard.evals.report.series import conditions
from grpo_guard.evals.results import Results, ResultsError, Run, Summary, load_results
from grpo_guard.evals.roles import attack_free
from grpo_guard.evals.stats import Rate

RESULTS = "results.json"
_ROOM = "max_new_tokens"


def load_all(places: Sequence[Path]) -> list[tuple[str, Results]]:
    """Load results files as (name, content) pairs; for a folder, load its results.json."""
    files = dict.fromkeys(p if p.suffix == ".json" else p / RESULTS for p in places)
    return [(str(file), load_results(file)) for file in files]


def merged(found: Sequence[tuple[str, Results]]) -> Results:
    """Merge the training runs of all files; a run found in several of them counts once.

    Runs with different tasks or policies are kept apart. If attack-free runs differ only in their
    length limit, only the one with the highest limit counts, as within a single plan.

    Raises:
        ResultsError: two files have different results for the same run, so they were made with
            different settings or versions; or runs to be compared state different settings.
    """
    runs: dict[Any, tuple[str, Run]] = {}
    for name, results in found:
        for run in results.runs:
            key = (run.attack, run.defence, conditions(run), run.seed)
            if key not in runs:
                runs[key] = name, run
            elif runs[key][0] == name or _figures(runs[key][1]) == _figures(run):
                continue
            elif attack_free(run.attack) and _but_for_room(runs[key][1], run):
                runs[key] = max(runs[key], (name, run), key=lambda one: _room(one[1]))
            else:
                raise ResultsError(
                    f"{name}: runs: expected the same results as in {runs[key][0]} for attack "
                    f"{run.attack!r}, defence {run.defence!r}, seed {run.seed}, got others; "
                    "report these files separately"
                )
    _require_alike(list(runs.values()))
    return Results(runs=[run for _, run in runs.values()])


def pooled(found: Sequence[tuple[str, Results]]) -> list[Results]:
    """Pool the detections of all files, adding up the counts of files that differ only by seed.

    Raises:
        ResultsError: two files have the same seed and settings but different counts.
    """
    parts: dict[str, dict[Any, tuple[str, Results]]] = {}
    for name, results in found:
        if results.runs:
            continue
        counted = all(row.rejected is not None for row in results.summary)
        own = {k: v for k, v in results.config.items() if k not in ("seed", "command")}
        plan = json.dumps(own, sort_keys=True, default=str) if own and counted else name
        seeds = parts.setdefault(plan, {})
        first, same = seeds.setdefault(results.config.get("seed"), (name, results))
        if same.summary != results.summary:
            raise ResultsError(
                f"{name}: summary: expected the counts of {first}, which has the same seed and "
                "settings, got others; report these files separately"
            )
    return [_added([one for _, one in seeds.values()]) for seeds in parts.values()]


def _added(parts: Sequence[Results]) -> Results:
    """Add up the detections of several seeds."""
    if len(parts) == 1:
        return parts[0]
    groups: dict[tuple[str, str, str], list[Summary]] = defaultdict(list)
    honest: dict[str, list[float]] = defaultdict(list)
    poison: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for part in parts:
        for row in part.summary:
            groups[row.attack, row.defence, row.metric].append(row)
        for defence, values in part.honest_p_values.items():
            honest[defence] += values
        for defence, kinds in part.p_values.items():
            for kind, values in kinds.items():
                poison[defence][kind] += values
    rows = []
    for (attack, defence, metric), same in groups.items():
        rejected, abstained = (
            sum(getattr(row, name) or 0 for row in same) for name in ("rejected", "abstained")
        )
        nothing = [row.earns_nothing for row in same if row.earns_nothing is not None]
        rate = Rate(rejected, sum(row.n for row in same))
        rows.append(
            Summary(attack=attack, defence=defence, metric=metric, rejected=rejected,
                    abstained=abstained, earns_nothing=sum(nothing) if nothing else None,
                    **rate.row())
        )  # fmt: skip
    examples = [example for part in parts for example in part.examples]
    return Results(
        runs=[], summary=rows, examples=examples, honest_p_values=honest, p_values=poison
    )


def _require_alike(found: Sequence[tuple[str, Run]]) -> None:
    """Require runs that are to be pooled or compared to state the same settings.

    Otherwise a guard could be measured against an attack that it never faced.
    """
    first: dict[Any, tuple[str, dict[str, Any]]] = {}
    for name, run in found:
        # The defence's name includes what a rejection costs. Without an attack no node is
        # malicious, no matter what the plan says for its other runs.
        left_out = {"seed", "on_reject"}
        left_out |= {"malicious", _ROOM} if attack_free(run.attack) else set()
        own = {key: value for key, value in run.settings.items() if key not in left_out}
        if not own:
            continue
        before, theirs = first.setdefault((run.attack, conditions(run)), (name, own))
        other = sorted(key for key in {**own, **theirs} if own.get(key) != theirs.get(key))
        if other:
            raise ResultsError(
                f"{name}: runs: expected the settings of {before} for attack {run.attack!r}, "
                f"defence {run.defence!r}, got a different {', '.join(other)[:80]}; "
                "report these files separately"
            )


def _figures(run: Run) -> tuple[list[float], ...]:
    """Return the figures that tell runs apart; attack success is 0 in every attack-free run."""
    return run.asr, run.honest_reward, run.mean_tokens


def _but_for_room(one: Run, other: Run) -> bool:
    """Whether both runs state settings that differ only in the length limit."""
    left_out = (_ROOM, "malicious")
    ours, theirs = (
        {key: value for key, value in run.settings.items() if key not in left_out}
        for run in (one, other)
    )
    return bool(ours) and ours == theirs and _room(one) != _room(other)


def _room(run: Run) -> int:
    found = run.settings.get(_ROOM)
    return found if isinstance(found, int) else 0
