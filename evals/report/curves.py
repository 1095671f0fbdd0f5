"""The report's curves: attack success and honest reward, round by round."""

from collections.abc import Sequence
from typing import Final

from grpo_guard.evals.report.cells import curve_table
from grpo_guard.evals.report.charts import Line, line_chart, smooth
from grpo_guard.evals.report.page import figure, note, prose
from grpo_guard.evals.report.scenarios import Scenario
from grpo_guard.evals.report.sentences import cost_sentence, verdict_sentence
from grpo_guard.evals.report.series import WINDOW, Series
from grpo_guard.evals.roles import Role, attack_free, lengthens, role, under_test
from grpo_guard.evals.stats import OverSeeds, percent

_MOST_LINES: Final = 6
_MOST_FAINT: Final = 3  # the unsmoothed values of more series would hide each other
_GUARD_STYLES: Final = 4


def curves_section(scenario: Scenario, *, alone: bool) -> str:
    """Return an attack's heading, charts, and a table of every tenth iteration."""
    parts = []
    if not alone:
        where = f"{scenario.name}: {scenario.where.setting}, {scenario.where.models}"
        parts.append(f"<h3>{prose(where)}</h3>")
        if not attack_free(scenario.attack):
            parts.append(f"<p>{prose(verdict_sentence(scenario))}</p>")
    attack = _attack_chart(scenario) if not attack_free(scenario.attack) else ""
    parts.append(f'<div class="charts">{attack}{_reward_chart(scenario)}</div>')
    # A second attack-free line would only hide the first.
    shown = [one for one in scenario.series if one is not scenario.free_under_coin]
    left_out = len(shown) - len(_drawn(scenario))
    if left_out:
        parts.append(note(f"{left_out} more defences are in the tables, not in the charts."))
    table = curve_table(scenario).html("many")
    parts.append(f"<details><summary>Every tenth iteration as a table</summary>{table}</details>")
    return f'<section class="attack">{"".join(parts)}</section>'


def _attack_chart(scenario: Scenario) -> str:
    if lengthens(scenario.attack) and any(s.length_band for s in scenario.series):
        lines = [_line(series, style, series.length_band) for series, style in _drawn(scenario)]
        svg = line_chart(
            lines,
            describe=f"Mean length per iteration. {verdict_sentence(scenario)}",
            show=lambda value: f"{value:.0f}",
            values="mean tokens",
        )
        under = "Mean tokens of the honest nodes’ completions."
        return figure("Mean length", under, svg)
    lines = [
        _line(series, style, series.asr_band)
        for series, style in _drawn(scenario)
        if series not in (scenario.free, scenario.free_under_coin)
    ]
    svg = line_chart(
        lines,
        describe=f"Attack success per iteration. {verdict_sentence(scenario)}",
        show=whole_percent,
        values="attack success",
        least_top=1.0,
    )
    under = "Share of the honest nodes’ completions that show the attack’s behaviour."
    return figure("Attack success", under, svg)


def _reward_chart(scenario: Scenario) -> str:
    drawn = _drawn(scenario)
    faint = len(drawn) <= _MOST_FAINT
    lines = [
        Line(
            series.label,
            smooth(series.honest_reward, WINDOW),
            style,
            raw=series.honest_reward if faint else (),
        )
        for series, style in drawn
    ]
    # Smoothed over the same window as in the table, so that a line ends at the figure quoted there.
    svg = line_chart(
        lines,
        describe=f"Honest reward per iteration. {cost_sentence(scenario)}",
        show=lambda value: f"{value:.2f}",
        values="honest reward",
    )
    under = f"Mean reward of the honest nodes’ completions: mean of the last {WINDOW} iterations"
    under += ", over the faint single values." if faint else "."
    return figure("Honest reward", under, svg)


def _drawn(scenario: Scenario) -> list[tuple[Series, int]]:
    """Select (series, style) for a chart: attack-free, undefended, then guards under test first."""
    deciding = under_test(series.defence for series in scenario.guarded)
    first = [(s, style) for style, s in enumerate((scenario.free, scenario.undefended)) if s]
    guards = [s for s in scenario.guarded if s.defence in deciding]
    others = [s for s in scenario.guarded if s.defence not in deciding]
    others.sort(key=lambda s: role(s.defence) is not Role.BASELINE)
    rest = [(s, 2 + place % _GUARD_STYLES) for place, s in enumerate(guards + others)]
    return (first + rest)[:_MOST_LINES]


def _line(series: Series, style: int, points: Sequence[OverSeeds]) -> Line:
    ends = [(p.low, p.high) for p in points]
    known = [(low, high) for low, high in ends if low is not None and high is not None]
    band = known if series.seeds > 2 else []  # with two seeds it would fill the chart
    values = [point.value for point in points]
    return Line(series.label, values, style, band=band if len(band) == len(values) else [])


def whole_percent(value: float) -> str:
    """Format a share for an axis as a percentage, without decimals unless they matter."""
    return f"{100 * value:.0f} %" if value == 0 or value >= 0.1 else percent(value)
