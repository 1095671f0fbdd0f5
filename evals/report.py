"""report.html: one file that explains a results file, with nothing from elsewhere in it.

Whatever comes from a results file is hostile, the names of its defences included: every string
goes through `esc` or `marked`, which make hidden characters visible, cut long texts and escape the
rest. The page holds no script, and its content policy forbids any.
"""

from __future__ import annotations

import html
import json
from itertools import groupby
from pathlib import Path
from string import Template
from typing import Any

from grpo_guard.evals.charts import Line, line_chart, smooth
from grpo_guard.evals.excerpt import Piece, excerpt, visible
from grpo_guard.evals.results import Example, Results, load_results, write_text
from grpo_guard.evals.sentences import cost_sentence, held, time_sentence, verdict_sentence
from grpo_guard.evals.series import NONE, WINDOW, Rate, Scenario, Series, percent, scenarios
from grpo_guard.evals.tables import Cell, Table, curve_table, outcome_table, rejection_table

_TEMPLATES = Path(__file__).resolve().parent / "templates"
_MOST_FINDINGS = 6
_MOST_EXAMPLES = 3


def write_report(directory: Path) -> Path:
    """Render ``directory/report.html`` from ``directory/results.json``; return its path.

    Raises:
        ResultsError: results.json is missing or not of the shape.
    """
    page = render(load_results(directory / "results.json"))
    target = directory / "report.html"
    write_text(target, page)
    return target


def render(results: Results) -> str:
    """Return the whole page."""
    found = scenarios(results)
    if len(found) == 1:
        headline = verdict_sentence(found[0])
    else:
        good = sum(held(scenario) for scenario in found)
        headline = f"The guard held in {good} of {len(found)} attacks." if found else "Results"
    body = [
        f'<p class="eyebrow">grpo-guard report{_subject(found)}</p>',
        f"<h1>{_prose(headline)}</h1>",
        *(_section(scenario, alone=len(found) == 1) for scenario in found),
        _summary(results) if not found else "",
        _made_by(results),
    ]
    return Template((_TEMPLATES / "report.html").read_text(encoding="utf-8")).substitute(
        title=_prose(f"grpo-guard: {headline}"),
        style=(_TEMPLATES / "report.css").read_text(encoding="utf-8"),
        body="\n".join(part for part in body if part),
    )


def esc(value: object, limit: int = 300) -> str:
    """Any value as harmless, fully visible HTML text."""
    return html.escape(visible(value, limit=limit))


def marked(pieces: list[Piece]) -> str:
    """An excerpt as HTML: poison in <mark>, evidence underlined, hidden characters boxed."""
    parts = []
    for poison, run in groupby(pieces, key=lambda piece: piece.poison):
        inner = "".join(_piece(piece) for piece in run)
        parts.append(f"<mark>{inner}</mark>" if poison else inner)
    return "".join(parts)


def _piece(piece: Piece) -> str:
    text = html.escape(piece.text)
    for is_so, name in ((piece.hidden, "hidden"), (piece.cut, "cut"), (piece.evidence, "found")):
        if is_so:
            text = f'<span class="{name}">{text}</span>'
    return text


def _prose(text: str) -> str:
    """Our own sentences, which may quote names from the file; numbers stay with their unit."""
    return esc(text, limit=2000).replace(" %", "&nbsp;%")


def _subject(found: list[Scenario]) -> str:
    if len(found) != 1:
        return ""
    one = found[0]
    runs = [run for series in one.series for run in series.runs]
    seeds = len({run.seed for run in runs})
    parts = [f"attack {one.attack}"] if one.attack != NONE else []
    parts += [one.setting, one.models, f"{seeds} seed{'s' if seeds > 1 else ''}"]
    return " · " + _prose(", ".join(parts))


def _section(scenario: Scenario, *, alone: bool) -> str:
    title = ""
    if not alone:
        name = f"{scenario.attack}: {scenario.setting}, {scenario.models}"
        title = f"<h2>{_prose(name)}</h2><p>{_prose(verdict_sentence(scenario))}</p>"
    cost = cost_sentence(scenario)
    parts = [
        title,
        f'<p class="lede">{_prose(cost)}</p>' if cost else "",
        _charts(scenario),
        _outcomes(scenario),
        *(_example(series) for series in scenario.guarded[:_MOST_EXAMPLES]),
        _curves(scenario),
    ]
    return "\n".join(part for part in parts if part)


def _charts(scenario: Scenario) -> str:
    attack = _figure(
        "Attack success",
        "Share of the honest nodes’ completions that show the attack’s behaviour.",
        line_chart(
            [Line(_label(s), s.asr, _style(scenario, s)) for s in scenario.attacked],
            describe=f"Attack success per iteration. {verdict_sentence(scenario)}",
            show=_whole_percent,
            least_top=1.0,
        ),
    )
    rewards = [
        Line(_label(s), smooth(s.honest_reward, WINDOW), _style(scenario, s), raw=s.honest_reward)
        for s in scenario.series
    ]
    # Smoothed over the same window as the table, so that a line ends at the figure quoted there.
    reward = _figure(
        "Honest reward",
        f"Mean reward of the honest nodes’ completions: mean of the last {WINDOW} iterations, "
        "over the faint single values.",
        line_chart(
            rewards,
            describe=f"Honest reward per iteration. {cost_sentence(scenario)}",
            show=lambda value: f"{value:.2f}",
        ),
    )
    return f'<div class="charts">{attack if scenario.attacked else ""}{reward}</div>'


def _figure(title: str, note: str, svg: str) -> str:
    caption = f'<h3>{title}</h3><p class="note">{note}</p>'
    return f"<figure><figcaption>{caption}</figcaption>{svg}</figure>"


def _label(series: Series) -> str:
    """A chart's label; the chart escapes, so hidden characters are all there is to do here."""
    return visible(series.label, limit=40)


def _style(scenario: Scenario, series: Series) -> int:
    if series is scenario.free:
        return 0
    if series is scenario.undefended:
        return 1
    return 2 + scenario.guarded.index(series) % 4


def _whole_percent(value: float) -> str:
    return f"{100 * value:.0f} %" if value == 0 or value >= 0.1 else percent(value)


def _outcomes(scenario: Scenario) -> str:
    parts = [
        "<h2>In numbers</h2>",
        f'<p class="note">“At the end” pools the last {WINDOW} iterations. Intervals are Wilson '
        "95 %, from the counts beside them.</p>",
        _table(outcome_table(scenario)),
    ]
    if scenario.guarded:
        parts += ["<h2>What the guard rejected</h2>", _table(rejection_table(scenario))]
    return "".join(parts)


def _table(table: Table, kind: str = "stack") -> str:
    head = "".join(f'<th scope="col">{esc(name)}</th>' for name in table.header)
    rows = []
    for row in table.rows:
        cells = (
            f'<td data-name="{esc(name)}">{_cell(cell)}</td>'
            for name, cell in zip(table.header, row, strict=True)
        )
        rows.append(f"<tr>{''.join(cells)}</tr>")
    body = "".join(rows)
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(cell: Cell) -> str:
    if not isinstance(cell, Rate):
        return f"<span>{_prose(cell)}</span>"
    if not cell.total:
        return f"<span>{cell.count_text}</span>"
    detail = _prose(f"{cell.count_text}, {cell.interval_text}")
    return f"<span>{_prose(cell.value_text)}</span><small>{detail}</small>"


def _example(series: Series) -> str:
    example = next((run.example for run in series.runs if run.example), None)
    if example is None:
        return ""
    findings = [f for f in example.verdict.findings if f.char_span]
    pieces = excerpt(example.text, example.span, [f.char_span for f in findings if f.char_span])
    origin = [f"iteration {example.iteration}"] if example.iteration is not None else []
    origin += [example.node] if example.node else []
    legend = ["<mark>Marked</mark>: what the attack put in."]
    if findings:
        legend.append('<span class="found">Underlined</span>: what the guard found.')
    if any(piece.hidden for piece in pieces):
        legend.append('<span class="hidden">Boxed</span>: a character that would not be seen.')
    by = "the guard" if series.label == "guarded" else series.label
    return (
        f"<h2>One completion that {_prose(by)} rejected</h2>"
        f'<p class="note">{_prose(", ".join(origin))}{". " if origin else ""}{" ".join(legend)}</p>'
        f'<pre><span class="asked">{marked(excerpt(example.prompt, limit=600))}</span>'
        f"{marked(pieces)}</pre>{_why(example)}"
    )


def _why(example: Example) -> str:
    verdict = example.verdict
    said = [esc(finding.message, limit=600) for finding in verdict.findings[:_MOST_FINDINGS]]
    first = said[0] if said else f"no finding, cause {esc(verdict.cause)}"
    items = [f"<li><b>{esc(verdict.verifier)}</b>: {first}.</li>"]
    items += [f"<li>{message}.</li>" for message in said[1:]]
    left = len(verdict.findings) - _MOST_FINDINGS
    if left > 0:
        items.append(f'<li class="note">and {left:,} more findings</li>')
    if verdict.p_value is not None:
        chance = f"{verdict.p_value:.1e}" if verdict.p_value else "below 1e-300"
        meaning = "the chance that honest work gives evidence this strong"
        items.append(f'<li class="note">p-value {chance}: {meaning}.</li>')
    return f'<ul class="why">{"".join(items)}</ul>'


def _curves(scenario: Scenario) -> str:
    table = _table(curve_table(scenario), kind="many")
    return f"<details><summary>Every tenth iteration as a table</summary>{table}</details>"


def _summary(results: Results) -> str:
    rows: list[list[Cell]] = []
    for row in results.summary:
        interval = f"{_number(row.low)}–{_number(row.high)}"
        mean = _number(row.mean)
        rows.append([row.attack, row.defence, row.metric, mean, interval, f"{row.n:,}"])
    return _table(Table(["Attack", "Defence", "Figure", "Mean", "95 %", "n"], rows))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _made_by(results: Results) -> str:
    config = dict(results.config)
    command = config.pop("command", None)
    parts = ["<h2>How it was made</h2>"]
    if command is not None:
        parts.append(f"<pre>{esc(command, limit=2000)}</pre>")
    times = " ".join(time_sentence(scenario) for scenario in scenarios(results)).strip()
    parts += [f'<p class="note">{_prose(times)}</p>' if times else ""]
    parts += [_keys(config), _keys(results.versions)]
    return "".join(parts)


def _keys(mapping: dict[str, Any]) -> str:
    items = "".join(
        f"<dt>{esc(key)}</dt><dd>{esc(_plain(value), limit=2000)}</dd>"
        for key, value in mapping.items()
    )
    return f'<dl class="keys">{items}</dl>' if items else ""


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(item)}" for key, item in value.items())
    return value if isinstance(value, str) else json.dumps(value, default=str)
