"""Attacks by defences: what the attack reached, what a guard let through, and what it cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from grpo_guard.evals.report.figures import Rate, percent
from grpo_guard.evals.report.page import html_table, note
from grpo_guard.evals.report.scenarios import Scenario, scenario_names
from grpo_guard.evals.report.series import WINDOW, Series
from grpo_guard.evals.report.tables import DASH, Cell, Shade, Table, seeds_cell
from grpo_guard.evals.report.verdicts import untested_because
from grpo_guard.evals.roles import NONE, Role, attack_free, lengthens, ordered_defences, role

_SHARES: Final = (0.02, 0.1, 0.5)  # attack success, and poison accepted
_LENGTHS: Final = (0.15, 0.5, 1.0)  # distance from the attack-free run's
_REJECTED: Final = (0.005, 0.02, 0.1)  # honest and correct

Fill = Callable[[Scenario, Series], Cell]


def matrices(found: Sequence[Scenario]) -> str:
    """Three tables: what attacks reached, honest work rejected, poison accepted."""
    parts = [
        "<h2>What each attack reached</h2>",
        note(
            f"Attack success over the last {WINDOW} iterations; for attacks on length (“×”) mean "
            "length by the attack-free run’s. Means with 95 % intervals over the seeds (Student’s "
            "t). Beside them Wilson’s 95 % over the completions, which does not say how another "
            "seed would differ: completions of one run are not independent. Blue is within "
            f"{percent(_SHARES[0])}, or {100 * _LENGTHS[0]:.0f} % of the length; the redder, the "
            "further beyond."
        ),
        html_table(matrix(found, _reached, attacked=True), kind="stack matrix"),
    ]
    if any(scenario.guarded for scenario in found):
        parts += [
            "<h2>What it cost honest work</h2>",
            note(
                "Honest completions with the right answer that were rejected, over whole runs, "
                f"with Wilson 95 % intervals. Blue is at most {percent(_REJECTED[0])}, pale "
                f"yellow at most {percent(_REJECTED[1])}."
            ),
            html_table(matrix(found, _honest_rejected), kind="stack matrix"),
            "<h2>What passed</h2>",
            note(
                "Poisoned completions that were accepted, over whole runs. Abstentions are "
                "neither; they stand beside where there were any. From a node that a ledger has "
                "excluded nothing is accepted any more, whatever it sends: where that happened "
                "the figure is no rate of detection."
            ),
            html_table(matrix(found, _accepted), kind="stack matrix"),
        ]
    return "".join(parts)


def matrix(found: Sequence[Scenario], fill: Fill, *, attacked: bool = False) -> Table:
    """One row per attack, one column per defence."""
    defences = ordered_defences(series.defence for one in found for series in one.guarded)
    if attacked and any(one.undefended for one in found):
        defences = [NONE, *defences]
    header = ["Attack", *(_column(name) for name in defences)]
    rows: list[list[Cell]] = []
    for name, scenario in zip(scenario_names(found), found, strict=True):
        if attacked and attack_free(scenario.attack):
            continue
        series = {one.defence: one for one in scenario.attacked}
        cells = (fill(scenario, series[d]) if d in series else DASH for d in defences)
        lacks = untested_because(scenario)
        rows.append([Shade(name, (lacks,)) if lacks else name, *cells])
    return Table(header, rows)


def _column(defence: str) -> str:
    found = role(defence)
    if found is Role.UNDEFENDED:
        return "undefended"
    return f"{defence} (baseline)" if found is Role.BASELINE else defence


def _reached(scenario: Scenario, series: Series) -> Cell:
    """Attack success at the end, or for an attack on length the ratio of lengths."""
    if lengthens(scenario.attack):
        ratio = series.length_ratio_end(scenario.beside(series))
        if ratio is None:
            return DASH
        return seeds_cell(ratio, _times, level=level(abs(ratio.value - 1), _LENGTHS))
    share, counted = series.asr_in(), series.asr_counted()
    if share is None:
        return DASH
    known = counted is not None and counted.total
    wilson = (f"Wilson {counted.interval_text}",) if counted is not None and known else ()
    return seeds_cell(share, percent, *wilson, level=level(share.value, _SHARES))


def _times(ratio: float) -> str:
    return f"{ratio:.2f} ×"


def _honest_rejected(scenario: Scenario, series: Series) -> Cell:
    return _share(series.rejected("honest_correct"), _REJECTED)


def _accepted(scenario: Scenario, series: Series) -> Cell:
    if attack_free(scenario.attack):
        return DASH
    cell = _share(series.accepted_poison, _SHARES)
    unsure = series.abstained
    if isinstance(cell, Shade) and unsure is not None and unsure.count:
        return Shade(cell.text, (*cell.detail, f"abstained on {unsure.count:,}"), cell.level)
    return cell


def _share(rate: Rate | None, limits: Sequence[float]) -> Cell:
    if rate is None or rate.value is None:
        return DASH
    detail = (rate.count_text, rate.interval_text)
    return Shade(rate.value_text, detail, level(rate.value, limits))


def level(value: float, limits: Sequence[float]) -> int:
    """How many of the rising limits a value exceeds: the shade of its cell."""
    return sum(value > limit for limit in limits)
