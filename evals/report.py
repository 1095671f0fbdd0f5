"""report.html: one file that explains a results file, with nothing from elsewhere in it.

Whatever comes from a results file is hostile, the names of its defences included: every string
goes through `page`, which names hidden characters, cuts long texts and escapes the rest. The page
holds no script, and its content policy forbids any.
"""

from __future__ import annotations

from pathlib import Path
from string import Template

from grpo_guard.evals.charts import Line, line_chart, smooth
from grpo_guard.evals.excerpt import visible
from grpo_guard.evals.page import definitions, esc, html_table, prose, shown_example
from grpo_guard.evals.report_detect import detection_section, detection_sentence
from grpo_guard.evals.results import Results, load_results, write_text
from grpo_guard.evals.sentences import cost_sentence, held, time_sentence, verdict_sentence
from grpo_guard.evals.series import NONE, WINDOW, Scenario, Series, percent, scenarios
from grpo_guard.evals.tables import curve_table, outcome_table, rejection_table

_TEMPLATES = Path(__file__).resolve().parent / "templates"
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
    if not found:
        headline = detection_sentence(results)
    elif len(found) == 1:
        headline = verdict_sentence(found[0])
    else:
        good = sum(held(scenario) for scenario in found)
        headline = f"The guard held in {good} of {len(found)} attacks."
    body = [
        f'<p class="eyebrow">grpo-guard report{_subject(found)}</p>',
        f"<h1>{prose(headline)}</h1>",
        *(_section(scenario, alone=len(found) == 1) for scenario in found),
        "" if found else detection_section(results),
        _made_by(results),
    ]
    return Template((_TEMPLATES / "report.html").read_text(encoding="utf-8")).substitute(
        title=prose(f"grpo-guard: {headline}"),
        style=(_TEMPLATES / "report.css").read_text(encoding="utf-8"),
        body="\n".join(part for part in body if part),
    )


def _subject(found: list[Scenario]) -> str:
    if len(found) != 1:
        return ""
    one = found[0]
    runs = [run for series in one.series for run in series.runs]
    seeds = len({run.seed for run in runs})
    parts = [f"attack {one.attack}"] if one.attack != NONE else []
    parts += [one.setting, one.models, f"{seeds} seed{'s' if seeds > 1 else ''}"]
    return " · " + prose(", ".join(parts))


def _section(scenario: Scenario, *, alone: bool) -> str:
    title = ""
    if not alone:
        name = f"{scenario.attack}: {scenario.setting}, {scenario.models}"
        title = f"<h2>{prose(name)}</h2><p>{prose(verdict_sentence(scenario))}</p>"
    cost = cost_sentence(scenario)
    parts = [
        title,
        f'<p class="lede">{prose(cost)}</p>' if cost else "",
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
        f'<p class="note">“At the end” is the last {WINDOW} iterations. 95 % intervals: Wilson '
        "for counts of completions; bootstrap over iterations for rewards, since completions of "
        "one problem hang together. Differences are paired: all swarms see the same problems.</p>",
        html_table(outcome_table(scenario)),
    ]
    if scenario.guarded:
        parts += ["<h2>What the guard rejected</h2>", html_table(rejection_table(scenario))]
    return "".join(parts)


def _example(series: Series) -> str:
    example = next((run.example for run in series.runs if run.example), None)
    by = "the guard" if series.label == "guarded" else series.label
    return shown_example(example, f"One completion that {by} rejected") if example else ""


def _curves(scenario: Scenario) -> str:
    table = html_table(curve_table(scenario), kind="many")
    return f"<details><summary>Every tenth iteration as a table</summary>{table}</details>"


def _made_by(results: Results) -> str:
    config = dict(results.config)
    command = config.pop("command", None)
    parts = ["<h2>How it was made</h2>"]
    if command is not None:
        parts.append(f"<pre>{esc(command, limit=2000)}</pre>")
    times = " ".join(time_sentence(scenario) for scenario in scenarios(results)).strip()
    parts += [f'<p class="note">{prose(times)}</p>' if times else ""]
    parts += [definitions(config), definitions(results.versions)]
    return "".join(parts)
