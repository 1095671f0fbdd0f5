"""The tables of a results file, once for all their readers: page, terminal, Markdown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from grpo_guard.evals.report.excerpt import visible
from grpo_guard.evals.report.figures import Mean, Rate, percent
from grpo_guard.evals.report.scenarios import Scenario, scenario_names, scenarios
from grpo_guard.evals.report.series import WINDOW
from grpo_guard.evals.results import Results

DASH = "–"


@dataclass(frozen=True, slots=True)
class Shade:
    """A figure of a matrix with its details, and how bad it is: from 0, as it should be, to 3."""

    text: str
    detail: tuple[str, ...]
    level: int | None


Cell: TypeAlias = str | Rate | Mean


@dataclass(frozen=True, slots=True)
class Table:
    """Column names and rows; a figure is written out by whoever renders it."""

    header: list[str]
    rows: list[list[Cell]]


@dataclass(frozen=True, slots=True)
class Matrix:
    """A table whose cells may be shaded."""

    header: list[str]
    rows: list[list[Cell | Shade]]


def outcome_table(scenario: Scenario) -> Table:
    """What became of each swarm."""
    header = ["Swarm", "Attack success at the end", "Highest in one iteration"]
    header += ["Honest reward at the end", "Against attack-free"]
    rows: list[list[Cell]] = []
    for series in scenario.series:
        attacked = series in scenario.attacked and bool(series.asr)
        free = scenario.beside(series)
        rows.append(
            [
                series.label,
                (series.asr_end or DASH) if attacked else DASH,
                percent(max(series.asr)) if attacked else DASH,
                series.reward_end or DASH,
                (series.reward_beside(free) if free else None) or DASH,
            ]
        )
    return Table(header, rows)


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
    """Outcomes and rejections of every attack as one Markdown table."""
    header = ["Attack", "Swarm", "Seeds", f"ASR, last {WINDOW}", "Highest ASR", "Length ratio"]
    header += [f"Honest reward, last {WINDOW}", "Held-out accuracy", "Poison rejected"]
    header += ["Honest rejected", "Honest correct rejected", "Abstained"]
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    found = scenarios(results)
    for name, scenario in zip(scenario_names(found), found, strict=True):
        for series in scenario.series:
            is_attacked = series in scenario.attacked
            ratio = series.length_ratio_end(scenario.beside(series))
            guard = [
                series.rejected("poisoned"),
                series.rejected("honest"),
                series.rejected("honest_correct"),
                series.abstained,
            ]
            cells = [
                name,
                series.label,
                str(series.seeds),
                (series.asr_end if is_attacked else None) or DASH,
                percent(max(series.asr)) if is_attacked and series.asr else DASH,
                DASH if ratio is None else f"{ratio:.2f}",
                series.reward_end or DASH,
                series.held_out or DASH,
                *((rate or DASH) if series.guarded else DASH for rate in guard),
            ]
            lines.append("| " + " | ".join(_markdown(cell) for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _markdown(cell: Cell) -> str:
    text = visible(cell).replace("\n", " ").replace("\\", "\\\\").replace("|", "\\|")
    return text.replace("<", "&lt;")
