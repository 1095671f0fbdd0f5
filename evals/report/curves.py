"""The report's curves: what an attack did round by round, beside what the paper says of it."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Final

from grpo_guard.evals.report.cells import curve_table
from grpo_guard.evals.report.charts import Line, Mark, line_chart, smooth
from grpo_guard.evals.report.page import figure, note, prose
from grpo_guard.evals.report.paper_claims import Claim, claim
from grpo_guard.evals.report.scenarios import Scenario
from grpo_guard.evals.report.sentences import cost_sentence, verdict_sentence
from grpo_guard.evals.report.series import WINDOW, Series
from grpo_guard.evals.roles import Role, attack_free, lengthens, role, under_test
from grpo_guard.evals.stats import OverSeeds, percent

_MOST_LINES: Final = 6
_MOST_FAINT: Final = 3  # single values of more series hide each other
_GUARD_STYLES: Final = 4


def curves_section(scenario: Scenario, *, alone: bool) -> str:
    """Heading, charts, the paper's words, and every tenth iteration as a table."""
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
    found = claim(scenario.attack)
    if lengthens(scenario.attack) and any(s.length_band for s in scenario.series):
        return _length_chart(scenario, found)
    lines = [
        _line(series, style, series.asr_band)
        for series, style in _drawn(scenario)
        if series not in (scenario.free, scenario.free_under_coin)
    ]
    svg = line_chart(
        lines,
        describe=f"Attack success per iteration. {verdict_sentence(scenario)}",
        show=whole_percent,
        least_top=1.0,
        marks=() if found is None or found.length else found.points,
    )
    under = "Share of the honest nodes’ completions that show the attack’s behaviour."
    return figure("Attack success", under, svg, _said(found, scenario))


def _length_chart(scenario: Scenario, found: Claim | None) -> str:
    lines = [_line(series, style, series.length_band) for series, style in _drawn(scenario)]
    usual = _usual_length(scenario)
    points = found.points if found and usual else ()
    svg = line_chart(
        lines,
        describe=f"Mean length per iteration. {verdict_sentence(scenario)}",
        show=lambda value: f"{value:.0f}",
        marks=[Mark(point.value * usual, point.iteration) for point in points],
    )
    under = "Mean tokens of the honest nodes’ completions."
    return figure("Mean length", under, svg, _said(found, scenario))


def _usual_length(scenario: Scenario) -> float:
    """Mean length without attack, from which the paper's doubling is reckoned."""
    series = scenario.free or scenario.undefended
    lengths = [point.value for point in series.length_band] if series else []
    whole = lengths if series is scenario.free else lengths[:1]
    return fmean(whole) if whole else 0.0


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
    # Smoothed over the same window as the table, so that a line ends at the figure quoted there.
    svg = line_chart(
        lines,
        describe=f"Honest reward per iteration. {cost_sentence(scenario)}",
        show=lambda value: f"{value:.2f}",
    )
    under = f"Mean reward of the honest nodes’ completions: mean of the last {WINDOW} iterations"
    under += ", over the faint single values." if faint else "."
    return figure("Honest reward", under, svg)


def _said(found: Claim | None, scenario: Scenario) -> str:
    """The paper's claim, and our figures at the iterations that it names."""
    if found is None:
        return ""
    text = f"The paper, undefended: {found.says}."
    series = scenario.undefended
    curve = series.asr if series is not None and not found.length else []
    here = [
        f"{percent(curve[at - 1])} at {at}"
        for at in (point.iteration for point in found.points)
        if at is not None and at <= len(curve)
    ]
    ratio = series.length_ratio_end(scenario.beside(series)) if series is not None else None
    if found.length and ratio is not None:
        text += f" Here: {ratio.value:.2f} times the attack-free length at the end."
    if curve:
        end = fmean(curve[-WINDOW:])
        text += f" Here: {', '.join([*here, f'{percent(end)} at the end'])}."
    return text


def _drawn(scenario: Scenario) -> list[tuple[Series, int]]:
    """As many series as a chart can tell apart, with their style; guards under test come first."""
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
    band = known if series.seeds > 2 else []  # over two it would fill the chart
    values = [point.value for point in points]
    return Line(series.label, values, style, band=band if len(band) == len(values) else [])


def whole_percent(value: float) -> str:
    """For an axis: without decimals where they say nothing."""
    return f"{100 * value:.0f} %" if value == 0 or value >= 0.1 else percent(value)
