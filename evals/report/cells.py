"""Table cells for one attack under one defence, and the tables built from them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Final, TypeAlias

from grpo_guard.evals.report.scenarios import Scenario
from grpo_guard.evals.report.series import WINDOW, Series
from grpo_guard.evals.report.tables import DASH, Cell, Shade, Table, level, rate_cell, seeds_cell
from grpo_guard.evals.report.verdicts import judge, settled, untested_because
from grpo_guard.evals.roles import NONE, Role, attack_free, lengthens, ordered_defences, role
from grpo_guard.evals.stats import percent, signed_percent, three_digits

LATER: Final = 20
"""Number of rounds after the malicious nodes leave, when the attack's effect is measured again."""
SHARES: Final = (0.02, 0.1, 0.5)  # attack success, and poison accepted
LENGTHS: Final = (0.15, 0.5, 1.0)  # relative deviation from the attack-free run's length
REJECTED: Final = (0.005, 0.02, 0.1)  # shares of correct honest completions
LOSSES: Final = (0.02, 0.1, 0.25)  # shares of the attack-free run’s honest reward

Fill: TypeAlias = Callable[[Scenario, Series], Cell]


def listing(columns: Mapping[str, Fill], found: Sequence[Scenario], *, guarded: bool) -> Table:
    """Build a table with one row per swarm, or per guarded swarm if ``guarded``."""
    return Table(
        [*columns],
        [
            [fill(scenario, series) for fill in columns.values()]
            for scenario in found
            for series in (scenario.guarded if guarded else scenario.series)
        ],
    )


def matrix(found: Sequence[Scenario], fill: Fill, *, attacked: bool = False) -> Table:
    """Build a table of attacks by defences; ``attacked`` leaves out the attack-free runs."""
    defences = ordered_defences(series.defence for one in found for series in one.guarded)
    if attacked and any(one.undefended for one in found):
        defences = [NONE, *defences]
    rows: list[list[Cell]] = []
    for scenario in found:
        if attacked and attack_free(scenario.attack):
            continue
        series = {one.defence: one for one in scenario.attacked}
        cells = (fill(scenario, series[d]) if d in series else DASH for d in defences)
        lacks = untested_because(scenario)
        rows.append([Shade(scenario.name, (lacks,)) if lacks else scenario.name, *cells])
    return Table(["Attack", *map(_column, defences)], rows)


def _column(defence: str) -> str:
    found = role(defence)
    if found is Role.UNDEFENDED:
        return "undefended"
    return f"{defence} (baseline)" if found is Role.BASELINE else defence


def _success(scenario: Scenario, series: Series) -> Cell:
    return seeds_cell(series.asr_in(), percent) if series in scenario.attacked else DASH


def _counted(scenario: Scenario, series: Series) -> Cell:
    return (series in scenario.attacked and series.asr_counted()) or DASH


def _highest(scenario: Scenario, series: Series) -> Cell:
    return percent(max(series.asr)) if series in scenario.attacked and series.asr else DASH


def _cost(scenario: Scenario, series: Series) -> Cell:
    cost = series.reward_cost(scenario.beside(series))
    return DASH if cost is None else seeds_cell(cost, signed_percent, settled(cost))


def _length(scenario: Scenario, series: Series) -> Cell:
    ratio = series.length_ratio_end(scenario.beside(series))
    return DASH if ratio is None else f"{ratio.value:.2f}"


def _verdict(scenario: Scenario, series: Series) -> Cell:
    """Return the verdict on a guarded series; other series are not held to any limit."""
    if not series.guarded:
        return DASH
    case = judge(scenario, series)
    return Shade(case.state.value, case.reasons)


def _rejected(kind: str) -> Fill:
    return lambda _, series: (series.guarded and series.rejected(kind)) or DASH


def _abstained(_: Scenario, series: Series) -> Cell:
    return (series.guarded and series.abstained) or DASH


OUTCOME: Final[Mapping[str, Fill]] = {
    "Swarm": lambda _, series: series.label,
    "Attack success at the end, over seeds": _success,
    "The same of completions, Wilson": _counted,
    "Highest in one iteration": _highest,
    "Honest reward at the end, over seeds": lambda _, s: seeds_cell(s.reward_end, three_digits),
    "Against attack-free": _cost,
    "Verdict": _verdict,
}
"""Columns for the outcome of each swarm."""

REJECTIONS: Final[Mapping[str, Fill]] = {
    "Guard": lambda _, series: series.defence,
    "Poison rejected": _rejected("poisoned"),
    "Honest rejected": _rejected("honest"),
    "Honest and correct, rejected": _rejected("honest_correct"),
    "Abstained": _abstained,
}
"""Columns for each guard's rejections: of poison, honest work, and correct honest work."""

BRIEF: Final[Mapping[str, Fill]] = {
    "Attack": lambda scenario, _: scenario.name,
    "Swarm": lambda _, series: series.label,
    "Attack success": _success,
    "Honest reward": OUTCOME["Honest reward at the end, over seeds"],
    "Poison rejected": _rejected("poisoned"),
    "Honest rejected": _rejected("honest"),
}
"""Columns that fit a terminal 80 characters wide."""

EVERYTHING: Final[Mapping[str, Fill]] = {
    "Attack": lambda scenario, _: scenario.name,
    "Swarm": lambda _, series: series.label,
    "Seeds": lambda _, series: str(series.seeds),
    f"ASR, last {WINDOW}, over seeds": _success,
    "The same of completions, Wilson": _counted,
    "Highest ASR": _highest,
    "Length ratio": _length,
    f"Honest reward, last {WINDOW}, over seeds": OUTCOME["Honest reward at the end, over seeds"],
    "Against attack-free": _cost,
    "Held-out accuracy": lambda _, series: series.held_out or DASH,
    "Poison rejected": _rejected("poisoned"),
    "Honest rejected": _rejected("honest"),
    "Honest correct rejected": _rejected("honest_correct"),
    "Abstained": _abstained,
    "Verdict": _verdict,
}
"""All columns, for a table over all attacks."""


def leaving_table(found: Sequence[Scenario]) -> Table | None:
    """Tabulate attack success in the round after the attacker left, and `LATER` rounds later."""
    header = ["Attack", "Swarm", "The attacker left", "Attack success in the next round"]
    header += ["Of its completions, Wilson", f"{LATER} rounds later", "Of its completions, Wilson"]
    rows: list[list[Cell]] = []
    for scenario in found:
        for series in scenario.attacked:
            leaves = series.runs[0].leaves
            if leaves is None or attack_free(series.attack):
                continue
            row: list[Cell] = [scenario.name, series.label, f"after round {leaves}"]
            for at in (leaves, leaves + LATER):
                rounds = slice(at, at + 1)
                row.append(seeds_cell(series.asr_in(rounds), percent, f"round {at + 1}"))
                row.append(series.asr_counted(rounds) or DASH)
            rows.append(row)
    return Table(header, rows) if rows else None


def curve_table(scenario: Scenario) -> Table:
    """Tabulate attack success and honest reward at iteration 1, at every tenth and at the last."""
    curves: dict[str, list[str]] = {}
    for series in scenario.attacked:
        curves[f"Attack success, {series.label}"] = [percent(value) for value in series.asr]
    for series in scenario.series:
        values = [f"{value:.2f}" for value in series.honest_reward]
        curves[f"Honest reward, {series.label}"] = values
    length = max((len(series.honest_reward) for series in scenario.series), default=0)
    shown = [i for i in range(1, length + 1) if i == 1 or i % WINDOW == 0 or i == length]
    return Table(
        ["Iteration", *curves],
        [[str(i), *(c[i - 1] if i <= len(c) else DASH for c in curves.values())] for i in shown],
    )


def reached(scenario: Scenario, series: Series) -> Cell:
    """Cell with the final attack success, or the ratio of lengths for an attack on length."""
    if lengthens(scenario.attack):
        ratio = series.length_ratio_end(scenario.beside(series))
        shade = level(abs(ratio.value - 1), LENGTHS) if ratio else None
        return seeds_cell(ratio, lambda value: f"{value:.2f} ×", level=shade)
    share, counted = series.asr_in(), series.asr_counted()
    wilson = (f"Wilson {counted.interval_text}",) if counted and counted.total else ()
    shade = level(share.value, SHARES) if share else None
    return seeds_cell(share, percent, *wilson, level=shade)


def right_rejected(_: Scenario, series: Series) -> Cell:
    """Cell with the correct honest completions rejected by a guard."""
    return rate_cell(series.rejected("honest_correct"), limits=REJECTED)


def accepted(scenario: Scenario, series: Series) -> Cell:
    """Cell with the poison accepted by a guard, and the guard's abstentions."""
    if attack_free(scenario.attack):
        return DASH
    unsure = series.abstained
    details = (f"abstained on {unsure.count:,}",) if unsure and unsure.count else ()
    return rate_cell(series.accepted_poison, *details, limits=SHARES)


def loss(scenario: Scenario, series: Series) -> Cell:
    """Format a table cell with the cost of guarding: honest reward, and held-out accuracy below."""
    free = scenario.beside(series)
    found, cell = series.reward_cost(free), _cost(scenario, series)
    if found is None or not isinstance(cell, Shade):
        return DASH
    gap = _accuracy_beside(series, free)
    points = () if gap is None else (f"held-out {signed_percent(gap)[:-2]}",)
    return replace(cell, detail=(*cell.detail, *points), level=level(-found.value, LOSSES))


def _accuracy_beside(series: Series, free: Series | None) -> float | None:
    """Mean gap in held-out accuracy to the attack-free series, paired by seed."""
    theirs = {run.seed: run.held_out for run in (free.runs if free else ())}
    gaps = [
        mine.correct / mine.total - yours.correct / yours.total
        for run in series.runs
        if (mine := run.held_out) and (yours := theirs.get(run.seed)) and mine.total and yours.total
    ]
    return fmean(gaps) if gaps else None


def seconds(_: Scenario, series: Series) -> Cell:
    """Cell with the guard's seconds per iteration, and when a node was first excluded."""
    cost, excluded = series.guard_cost, series.excluded_in
    details = [] if cost is None else [f"{100 * cost[1]:.0f} % of all"]
    if excluded:
        details.append(f"first excluded in {fmean(excluded):.0f}")
        details.append(f"{len(excluded)} of {series.seeds} seeds")
    return Shade(f"{cost[0]:.2f} s" if cost else DASH, tuple(details)) if details else DASH
