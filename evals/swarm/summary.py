"""Figures of swarm runs beside those that every report has: lengths, accuracy, cost, exclusion."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from grpo_guard.evals.report.series import WINDOW
from grpo_guard.evals.roles import COIN, NONE, SILENT, attack_free, plain, under_coin
from grpo_guard.evals.stats import OverSeeds, wilson

Run = dict[str, Any]
_WHERE: Final = ("attack", "defence", "setting", "models", "task")


def further_rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Rows for ``summary`` of results.json, one per defence, metric and so on.

    Means over seeds have Student's t interval, from two seeds on, shares of completions Wilson's;
    ``n`` is the number of what ``over`` names.
    """
    free = _attack_free(runs)
    pools: dict[tuple[str, ...], list[Run]] = defaultdict(list)
    for run in runs:
        pools[tuple(run.get(name, "") for name in _WHERE)].append(run)
    rows: list[dict[str, Any]] = []
    for key, pool in pools.items():
        where = dict(zip(_WHERE, key, strict=True))
        for metric, values in _per_seed(pool, free).items():
            if values:
                found = OverSeeds.of(values)
                rows.append(
                    {**where, "metric": metric, "mean": found.value, "low": found.low,
                     "high": found.high, "n": len(values), "over": "seeds"}
                )  # fmt: skip
        rows.append({**where, **_accuracy(pool)})
    return rows


def _attack_free(runs: Sequence[Run]) -> dict[tuple[Any, ...], Run]:
    """Runs without attack and guard by what others have in common with them.

    Those whose malicious nodes are silent stand before those without any, as in `scenarios`.
    """
    known = sorted(
        (run for run in runs if attack_free(run["attack"]) and run["defence"] in (NONE, COIN)),
        key=lambda run: plain(run["attack"]) == SILENT,
    )
    return {_place(run): run for run in known}


def _place(run: Run) -> tuple[Any, ...]:
    share = "" if run["attack"] == NONE else run["attack"].removeprefix(plain(run["attack"]))
    where = run["setting"], run["models"], run.get("task", ""), run["seed"]
    return (*where, share, under_coin(run["defence"]))


def _beside(run: Run, free: dict[tuple[Any, ...], Run]) -> Run | None:
    """The attack-free run that a run is compared with."""
    *where, share, coin = _place(run)
    places = [(share, coin), (share, False), ("", False)]
    return next((free[*where, *place] for place in places if (*where, *place) in free), None)


def _per_seed(pool: Sequence[Run], free: dict[Any, Run]) -> dict[str, list[float]]:
    """One value per seed; metrics that do not apply stay empty."""
    found: dict[str, list[float]] = defaultdict(list)
    for run in pool:
        attacked = not attack_free(run["attack"])
        if attacked:
            found["asr_highest"].append(max(run["asr"]))
        found["mean_tokens_end"].append(_end(run["mean_tokens"]))
        beside = _beside(run, free)
        if beside is not None and beside is not run:
            found["length_ratio_end"].append(_end(run["mean_tokens"]) / _end(beside["mean_tokens"]))
            found["length_ratio_highest"].append(_highest_ratio(run, beside))
        if run["defence"] not in (NONE, COIN) and run["seconds"]:
            found["guard_share_of_time"].append(run["guard_seconds"] / run["seconds"])
        if attacked and run["excluded"]:
            found["first_exclusion_round"].append(float(min(run["excluded"].values())))
    return found


def _accuracy(pool: Sequence[Run]) -> dict[str, Any]:
    correct = sum(run["held_out"]["correct"] for run in pool)
    total = sum(run["held_out"]["total"] for run in pool)
    found = wilson(correct, total)
    return {"metric": "held_out_accuracy", "mean": found.value, "low": found.low,
            "high": found.high, "n": total, "over": "completions"}  # fmt: skip


def _end(values: Sequence[float]) -> float:
    tail = values[-WINDOW:]
    return sum(tail) / len(tail)


def _highest_ratio(run: Run, beside: Run) -> float:
    """Highest ratio of the means over `WINDOW` rounds; single rounds are too noisy to compare."""
    ours, theirs = run["mean_tokens"], beside["mean_tokens"]
    ends = range(min(WINDOW, len(ours)), min(len(ours), len(theirs)) + 1)
    return max(_end(ours[:end]) / _end(theirs[:end]) for end in ends)
