"""What is left of honest work, and what guarding took: reward, accuracy, time, exclusion."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from grpo_guard.evals.report.figures import Mean, OverSeeds, percent
from grpo_guard.evals.report.matrix import level, matrix
from grpo_guard.evals.report.page import html_table, note
from grpo_guard.evals.report.scenarios import Scenario, scenario_names
from grpo_guard.evals.report.series import WINDOW, Series
from grpo_guard.evals.report.tables import (
    DASH,
    Cell,
    Matrix,
    Shade,
    Table,
    outcome_table,
    rejection_table,
)
from grpo_guard.evals.roles import NONE

_LOSSES = (0.02, 0.1, 0.25)  # shares of the attack-free run’s honest reward
NOTE = (
    f"“At the end” is the last {WINDOW} iterations. 95 % intervals: Wilson for counts of "
    "completions; bootstrap over iterations for rewards, since completions of one problem hang "
    "together. Differences are paired by seed: equal seeds see the same problems."
)


def cost_section(found: Sequence[Scenario], *, alone: bool) -> str:
    """Tables over all attacks; one attack alone has its whole tables."""
    took = _guarding(found)
    if alone:
        parts = ["<h2>In numbers</h2>", note(NOTE), html_table(outcome_table(found[0]))]
        if found[0].guarded:
            parts += ["<h2>What the guard rejected</h2>", html_table(rejection_table(found[0]))]
        if took.rows:
            parts += ["<h2>What guarding took</h2>", html_table(took)]
        return "".join(parts)
    parts = [
        "<h2>What is left of honest work</h2>",
        note(
            "Honest reward at the end against the attack-free run, in % of it: mean over the seeds "
            "with its 95 % interval, and below it held-out accuracy against the attack-free run, "
            f"in points. Blue loses at most {percent(_LOSSES[0])}."
        ),
        html_table(matrix(found, _loss, attacked=True), kind="stack matrix"),
        _folded("The same as a table", note(NOTE) + html_table(_honest_work(found))),
    ]
    if took.rows:
        parts += [
            "<h2>What guarding took</h2>",
            note(
                "Seconds of the guard per iteration. Honest nodes with the same weights are "
                "computed once in one process, and so is their guard; the share is of the whole "
                "iteration, with the samples of all nodes and the attacker’s own work in it. A "
                "node that samples only its part pays a larger share of its time."
            ),
            html_table(matrix(found, _seconds), kind="stack matrix"),
            _folded("The same as a table", html_table(took)),
        ]
    return "".join(parts)


def _folded(title: str, inner: str) -> str:
    return f"<details><summary>{title}</summary>{inner}</details>"


def _loss(scenario: Scenario, series: Series) -> Cell | Shade:
    free = scenario.beside(series)
    gaps = series.reward_gaps(free) if free else []
    usual = free.reward_end if free else None
    if not gaps or usual is None or usual.value <= 0:
        return DASH
    found = OverSeeds.of([100 * gap / usual.value for gap in gaps])
    ends = () if found.low is None else (f"{_signed(found.low)} to {_signed(found.high)} %",)
    accuracy = _accuracy_beside(series, free)
    points = () if accuracy is None else (f"held-out {_signed(accuracy.value)}",)
    shade = level(-found.value / 100, _LOSSES)
    return Shade(f"{_signed(found.value)} %", (*ends, *points), shade)


def _seconds(scenario: Scenario, series: Series) -> Cell | Shade:
    cost, excluded = series.guard_cost, series.excluded_in
    if cost is None:
        return DASH
    out = (f"first excluded in {fmean(excluded):.0f}",) if excluded else ()
    return Shade(f"{cost[0]:.2f} s", (f"{100 * cost[1]:.0f} % of all", *out), None)


def _honest_work(found: Sequence[Scenario]) -> Matrix:
    header = ["Attack", "Swarm", "Honest reward at the end", "Against attack-free"]
    header += ["Held-out accuracy", "Points against attack-free"]
    rows: list[list[Cell | Shade]] = []
    for name, scenario in zip(scenario_names(found), found, strict=True):
        for series in scenario.attacked:
            free = scenario.beside(series)
            accuracy = _accuracy_beside(series, free)
            rows.append(
                [
                    name,
                    "undefended" if series.defence == NONE else series.defence,
                    _bare(series.reward_end),
                    _bare(series.reward_beside(free) if free else None),
                    series.held_out or DASH,
                    _points(accuracy) if accuracy else DASH,
                ]
            )
    return Matrix(header, rows)


def _bare(mean: Mean | None) -> Cell | Shade:
    return DASH if mean is None else Shade(mean.value_text, (mean.interval_text,), None)


def _points(found: OverSeeds) -> Shade:
    ends = () if found.low is None else (f"{_signed(found.low)} to {_signed(found.high)}",)
    return Shade(_signed(found.value), ends, None)


def _guarding(found: Sequence[Scenario]) -> Table:
    header = ["Attack", "Defence", "Guard, seconds per iteration", "Share of the iteration"]
    header += ["First node excluded in", "Of seeds"]
    rows: list[list[Cell]] = []
    for name, scenario in zip(scenario_names(found), found, strict=True):
        for series in scenario.guarded:
            cost, excluded = series.guard_cost, series.excluded_in
            if cost is None and not excluded:
                continue
            rows.append(
                [
                    name,
                    series.defence,
                    f"{cost[0]:.2f}" if cost else DASH,
                    f"{100 * cost[1]:.0f} %" if cost else DASH,
                    f"iteration {fmean(excluded):.0f}" if excluded else DASH,
                    f"{len(excluded)} of {series.seeds}",
                ]
            )
    return Table(header, rows)


def _accuracy_beside(series: Series, free: Series | None) -> OverSeeds | None:
    """In percentage points, paired by seed."""
    theirs = {run.seed: run.held_out for run in (free.runs if free else ())}
    gaps = []
    for run in series.runs:
        mine, yours = run.held_out, theirs.get(run.seed)
        if mine and yours and mine.total and yours.total:
            gaps.append(100 * (mine.correct / mine.total - yours.correct / yours.total))
    return OverSeeds.of(gaps) if gaps else None


def _signed(value: float | None) -> str:
    return DASH if value is None else f"{round(value, 1) + 0.0:+.1f}".replace("-", "−")
