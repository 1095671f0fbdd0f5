"""The tables of a results file, once for all their readers: page, terminal, Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from grpo_guard.evals.report.excerpt import visible
from grpo_guard.evals.report.figures import (
    OverSeeds,
    Rate,
    percent,
    signed_percent,
    three_digits,
)
from grpo_guard.evals.report.scenarios import Scenario, scenario_names, scenarios
from grpo_guard.evals.report.series import WINDOW, Series
from grpo_guard.evals.report.verdicts import judge, settled
from grpo_guard.evals.results import Results
from grpo_guard.evals.roles import attack_free

DASH: Final = "–"
LATER: Final = 20
"""Rounds after which it is asked what is left of an attack whose nodes have left."""


@dataclass(frozen=True, slots=True)
class Shade:
    """A figure with its details, and how bad it is: from 0, as it should be, to 3."""

    text: str
    detail: tuple[str, ...] = ()
    level: int | None = None


Cell: TypeAlias = str | Rate | Shade


@dataclass(frozen=True, slots=True)
class Table:
    """Column names and rows; a figure is written out by whoever renders it."""

    header: list[str]
    rows: list[list[Cell]]


def shade_of(cell: Cell) -> Shade:
    """Any cell as text and details."""
    if isinstance(cell, Shade):
        return cell
    if isinstance(cell, str):
        return Shade(cell)
    if not cell.total:
        return Shade(cell.count_text)
    return Shade(cell.value_text, (cell.count_text, cell.interval_text))


def seeds_cell(
    found: OverSeeds | None, show: Callable[[float], str], *more: str, level: int | None = None
) -> Cell:
    """A mean over seeds with its interval, and what else is to be said of it."""
    if found is None:
        return DASH
    return Shade(show(found.value), (*found.details(show), *more), level)


def outcome_table(scenario: Scenario) -> Table:
    """What became of each swarm."""
    header = ["Swarm", "Attack success at the end, over seeds", "The same of completions, Wilson"]
    header += ["Highest in one iteration", "Honest reward at the end, over seeds"]
    header += ["Against attack-free", "Verdict"]
    rows: list[list[Cell]] = []
    for series in scenario.series:
        attacked = series in scenario.attacked and bool(series.asr)
        rows.append(
            [
                series.label,
                seeds_cell(series.asr_in(), percent) if attacked else DASH,
                (series.asr_counted() or DASH) if attacked else DASH,
                percent(max(series.asr)) if attacked else DASH,
                seeds_cell(series.reward_end, three_digits),
                _cost_cell(scenario, series),
                _verdict_cell(scenario, series),
            ]
        )
    return Table(header, rows)


def _cost_cell(scenario: Scenario, series: Series) -> Cell:
    free = scenario.beside(series)
    cost = series.reward_cost(free) if free else None
    return DASH if cost is None else seeds_cell(cost, signed_percent, settled(cost))


def _verdict_cell(scenario: Scenario, series: Series) -> Cell:
    """Nobody is held to a limit who does not guard."""
    if not series.guarded:
        return DASH
    case = judge("", scenario, series)
    return Shade(case.state.value, case.reasons)


def leaving_table(found: Sequence[Scenario]) -> Table | None:
    """Attack success once the attacker has left: in the next round, and `LATER` rounds later."""
    header = ["Attack", "Swarm", "The attacker left", "Attack success in the next round"]
    header += ["Of its completions, Wilson", f"{LATER} rounds later", "Of its completions, Wilson"]
    rows: list[list[Cell]] = []
    for name, scenario in zip(scenario_names(found), found, strict=True):
        for series in scenario.attacked:
            leaves = series.runs[0].leaves
            if leaves is None or attack_free(series.attack):
                continue
            row: list[Cell] = [name, series.label, f"after round {leaves}"]
            for at in (leaves, leaves + LATER):
                rounds = slice(at, at + 1)
                row.append(seeds_cell(series.asr_in(rounds), percent, f"round {at + 1}"))
                row.append(series.asr_counted(rounds) or DASH)
            rows.append(row)
    return Table(header, rows) if rows else None


def rejection_table(scenario: Scenario) -> Table:
    """What each guard rejected: poison, honest work, and the part of it that was right."""
    header = ["Guard", "Poison rejected", "Honest rejected", "Honest and correct, rejected"]
    header.append("Abstained")
    kinds = ("poisoned", "honest", "honest_correct")
    rows: list[list[Cell]] = [
        [series.defence, *(series.rejected(k) or DASH for k in kinds), series.abstained or DASH]
        for series in scenario.guarded
    ]
    return Table(header, rows)


def curve_table(scenario: Scenario, every: int = 10) -> Table:
    """Attack success and honest reward at iteration 1 and at every tenth."""
    header = ["Iteration"]
    header += [f"Attack success, {series.label}" for series in scenario.attacked]
    header += [f"Honest reward, {series.label}" for series in scenario.series]
    length = max((len(series.honest_reward) for series in scenario.series), default=0)
    shown = [i for i in range(1, length + 1) if i == 1 or i % every == 0 or i == length]
    rows: list[list[Cell]] = []
    for iteration in shown:
        row: list[Cell] = [str(iteration)]
        for series in scenario.attacked:
            row.append(percent(series.asr[iteration - 1]) if iteration <= len(series.asr) else DASH)
        for series in scenario.series:
            values = series.honest_reward
            row.append(f"{values[iteration - 1]:.2f}" if iteration <= len(values) else DASH)
        rows.append(row)
    return Table(header, rows)


def markdown_table(results: Results) -> str:
    """Outcomes and rejections of every attack as one Markdown table.

    Where attackers leave, what is left of their attack follows as a second one.
    """
    found = scenarios(results)
    header = ["Attack", "Swarm", "Seeds", f"ASR, last {WINDOW}, over seeds"]
    header += ["The same of completions, Wilson", "Highest ASR", "Length ratio"]
    header += [f"Honest reward, last {WINDOW}, over seeds", "Against attack-free"]
    header += ["Held-out accuracy", "Poison rejected", "Honest rejected"]
    header += ["Honest correct rejected", "Abstained", "Verdict"]
    rows: list[list[Cell]] = []
    for name, scenario in zip(scenario_names(found), found, strict=True):
        outcomes = outcome_table(scenario).rows
        for series, outcome in zip(scenario.series, outcomes, strict=True):
            swarm, success, counted, highest, reward, cost, verdict = outcome
            ratio = series.length_ratio_end(scenario.beside(series))
            kinds = ("poisoned", "honest", "honest_correct")
            guard = [*(series.rejected(kind) for kind in kinds), series.abstained]
            rows.append(
                [name, swarm, str(series.seeds), success, counted, highest,
                 DASH if ratio is None else f"{ratio.value:.2f}", reward, cost,
                 series.held_out or DASH,
                 *((rate or DASH) if series.guarded else DASH for rate in guard), verdict]
            )  # fmt: skip
    tables = [Table(header, rows), leaving_table(found)]
    return "\n".join(_markdown(table) for table in tables if table is not None)


def _markdown(table: Table) -> str:
    lines = ["| " + " | ".join(table.header) + " |", "|" + "---|" * len(table.header)]
    lines += ["| " + " | ".join(_markdown_cell(cell) for cell in row) + " |" for row in table.rows]
    return "\n".join(lines) + "\n"


def _markdown_cell(cell: Cell) -> str:
    if isinstance(cell, Shade):
        cell = f"{cell.text} ({'; '.join(cell.detail)})" if cell.detail else cell.text
    text = visible(cell).replace("\n", " ").replace("\\", "\\\\").replace("|", "\\|")
    return text.replace("<", "&lt;")
