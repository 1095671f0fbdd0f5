"""What is left of honest work, and what guarding took: reward, accuracy, time, exclusion."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from grpo_guard.evals.report.figures import OverSeeds, percent, signed_percent
from grpo_guard.evals.report.matrix import level, matrix
from grpo_guard.evals.report.page import html_table, note
from grpo_guard.evals.report.scenarios import Scenario
from grpo_guard.evals.report.series import WINDOW, Series
from grpo_guard.evals.report.tables import (
    DASH,
    Cell,
    Shade,
    outcome_table,
    rejection_table,
    seeds_cell,
)
from grpo_guard.evals.report.verdicts import BOUND, settled

_LOSSES = (0.02, 0.1, 0.25)  # shares of the attack-free run’s honest reward
NOTE = (
    f"“At the end” is the last {WINDOW} iterations. 95 % intervals: Student’s t over the seeds, "
    "which are independent; of counts of completions Wilson’s, which do not say how another seed "
    "would differ, since completions of one run are not independent. Differences are paired by "
    f"seed: equal seeds see the same problems. A cost is settled where its interval lies wholly "
    f"within or wholly beyond {BOUND}."
)


def cost_section(found: Sequence[Scenario], *, alone: bool) -> str:
    """Tables over all attacks; one attack alone has its whole tables."""
    if alone:
        parts = ["<h2>In numbers</h2>", note(NOTE), html_table(outcome_table(found[0]))]
        if found[0].guarded:
            parts += ["<h2>What the guard rejected</h2>", html_table(rejection_table(found[0]))]
    else:
        parts = [
            "<h2>What is left of honest work</h2>",
            note(
                "Honest reward at the end against the attack-free run, in % of it: mean over the "
                "seeds with its 95 % interval over them, and whether that settles the cost to "
                f"{BOUND}; below it held-out accuracy against the attack-free run, in "
                f"points. Blue loses at most {percent(_LOSSES[0])}."
            ),
            html_table(matrix(found, _loss, attacked=True), kind="stack matrix"),
        ]
    if any(s.guard_cost or s.excluded_in for one in found for s in one.guarded):
        parts += [
            "<h2>What guarding took</h2>",
            note(
                "Seconds of the guard per iteration. Honest nodes with the same weights are "
                "computed once in one process, and so is their guard; the share is of the whole "
                "iteration, with the samples of all nodes and the attacker’s own work in it. A "
                "node that samples only its part pays a larger share of its time."
            ),
            html_table(matrix(found, _seconds), kind="stack matrix"),
        ]
    return "".join(parts)


def _loss(scenario: Scenario, series: Series) -> Cell:
    free = scenario.beside(series)
    found = series.reward_cost(free) if free else None
    if found is None:
        return DASH
    accuracy = _accuracy_beside(series, free)
    points = () if accuracy is None else (f"held-out {signed_percent(accuracy.value)[:-2]}",)
    shade = level(-found.value, _LOSSES)
    return seeds_cell(found, signed_percent, settled(found), *points, level=shade)


def _seconds(scenario: Scenario, series: Series) -> Cell:
    cost, excluded = series.guard_cost, series.excluded_in
    details = [] if cost is None else [f"{100 * cost[1]:.0f} % of all"]
    if excluded:
        details.append(f"first excluded in {fmean(excluded):.0f}")
        details.append(f"{len(excluded)} of {series.seeds} seeds")
    if not details:
        return DASH
    return Shade(f"{cost[0]:.2f} s" if cost else DASH, tuple(details), None)


def _accuracy_beside(series: Series, free: Series | None) -> OverSeeds | None:
    """Paired by seed."""
    theirs = {run.seed: run.held_out for run in (free.runs if free else ())}
    gaps = []
    for run in series.runs:
        mine, yours = run.held_out, theirs.get(run.seed)
        if mine and yours and mine.total and yours.total:
            gaps.append(mine.correct / mine.total - yours.correct / yours.total)
    return OverSeeds.of(gaps) if gaps else None
