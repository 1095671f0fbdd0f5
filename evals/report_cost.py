"""What is left of honest work, and what guarding took: reward, accuracy, time, exclusion."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from grpo_guard.evals.figures import OverSeeds
from grpo_guard.evals.page import html_table, note
from grpo_guard.evals.roles import NONE
from grpo_guard.evals.scenarios import Scenario, scenario_names
from grpo_guard.evals.series import WINDOW, Series
from grpo_guard.evals.tables import DASH, Cell, Table, outcome_table, rejection_table

NOTE = (
    f"“At the end” is the last {WINDOW} iterations. 95 % intervals: Wilson for counts of "
    "completions; bootstrap over iterations for rewards, since completions of one problem hang "
    "together. Differences are paired by seed: equal seeds see the same problems."
)


def cost_section(found: Sequence[Scenario], *, alone: bool) -> str:
    """Tables over all attacks; one attack alone has its whole tables."""
    title = "In numbers" if alone else "What is left of honest work, and what guarding took"
    parts = [f"<h2>{title}</h2>", note(NOTE)]
    if alone:
        parts.append(html_table(outcome_table(found[0])))
        if found[0].guarded:
            parts += ["<h2>What the guard rejected</h2>", html_table(rejection_table(found[0]))]
    else:
        parts.append(html_table(_honest_work(found)))
    took = _guarding(found)
    if took.rows:
        parts += ["<h2>What guarding took</h2>" if alone else "", html_table(took)]
    return "".join(parts)


def _honest_work(found: Sequence[Scenario]) -> Table:
    header = ["Attack", "Swarm", "Honest reward at the end", "Against attack-free"]
    header += ["Held-out accuracy", "In points, against attack-free"]
    rows: list[list[Cell]] = []
    for name, scenario in zip(scenario_names(found), found, strict=True):
        for series in scenario.attacked:
            free = scenario.free
            rows.append(
                [
                    name,
                    "undefended" if series.defence == NONE else series.defence,
                    series.reward_end or DASH,
                    (series.reward_beside(free) if free else None) or DASH,
                    series.held_out or DASH,
                    _accuracy_beside(series, free),
                ]
            )
    return Table(header, rows)


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


def _accuracy_beside(series: Series, free: Series | None) -> str:
    """In percentage points, paired by seed."""
    theirs = {run.seed: run.held_out for run in (free.runs if free else ())}
    gaps = []
    for run in series.runs:
        mine, yours = run.held_out, theirs.get(run.seed)
        if mine and yours and mine.total and yours.total:
            gaps.append(mine.correct / mine.total - yours.correct / yours.total)
    if not gaps:
        return DASH
    found = OverSeeds.of([100 * gap for gap in gaps])

    def show(points: float) -> str:
        return f"{points:+.1f}".replace("-", "−")

    if found.low is None or found.high is None:
        return show(found.value)
    return f"{show(found.value)} ({show(found.low)} to {show(found.high)})"
