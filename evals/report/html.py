"""report.html: a self-contained page that lets a person judge the results.

Anything in a results file can be hostile, including the names of its defences: every string goes
through `page`, which names hidden characters, cuts long texts and escapes the rest. The page
contains no script, and its content security policy forbids any.
"""

from collections.abc import Sequence
from pathlib import Path
from string import Template

from grpo_guard.core.quoting import counted
from grpo_guard.evals.report.detection import detection_section, detection_sentence
from grpo_guard.evals.report.merge import RESULTS, load_all, merged, pooled
from grpo_guard.evals.report.page import definitions, esc, note, prose
from grpo_guard.evals.report.scenarios import Scenario, scenarios
from grpo_guard.evals.report.sentences import headline, verdict_sentence
from grpo_guard.evals.report.swarms import swarms_section
from grpo_guard.evals.report.verdicts import guard_verdicts
from grpo_guard.evals.results import Results, write_text

_TEMPLATES = Path(__file__).resolve().parent / "templates"


def write_report(directory: Path) -> Path:
    """Render ``directory/report.html`` from ``directory/results.json``; return its path."""
    target = directory / "report.html"
    write_text(target, page_of([directory / RESULTS]))
    return target


def page_of(places: Sequence[Path]) -> str:
    """Render the page for one or more folders or results files."""
    found = load_all(places)
    if len(found) == 1:
        return render(found[0][1])
    return render(merged(found), [results for _, results in found], pooled(found))


def render(
    results: Results, files: Sequence[Results] = (), detections: Sequence[Results] = ()
) -> str:
    """Return the full page on all runs.

    ``files`` are the results files that the runs come from, if there are several; the page shows
    how each one was made. ``detections`` are files with results from ``eval detect``.
    """
    files = files or [results]
    found = scenarios(results)
    detections = detections or [one for one in files if not one.runs]
    title = _title(found, detections)
    body = [
        f'<p class="eyebrow">grpo-guard report{_subject(found)}</p>',
        f"<h1>{prose(title)}</h1>",
        "".join(_unfinished(one) for one in files),
        swarms_section(found) if found else "",
        *(detection_section(one) for one in detections),
        "<h2>How it was made</h2>",
        *(_made_by(one) for one in files),
    ]
    return document(title, "\n".join(part for part in body if part))


def document(title: str, body: str) -> str:
    """Return a self-contained page with the report's style; ``body`` is HTML, already escaped."""
    return Template((_TEMPLATES / "report.html").read_text(encoding="utf-8")).substitute(
        title=prose(f"grpo-guard: {title}"),
        style=(_TEMPLATES / "report.css").read_text(encoding="utf-8"),
        body=body,
    )


def _unfinished(results: Results) -> str:
    """Return a note if the results cover only part of the planned runs."""
    planned, done = results.config.get("planned_runs"), results.config.get("finished_runs")
    if not (isinstance(planned, int) and isinstance(done, int)) or done >= planned:
        return ""
    return note(f"Not finished: {done:,} of {planned:,} planned runs are here.")


def _title(found: Sequence[Scenario], detections: Sequence[Results]) -> str:
    if len(found) == 1:
        return verdict_sentence(found[0])
    if found:
        return headline(guard_verdicts(found))
    return detection_sentence(detections[0]) if detections else "Results"


def _subject(found: Sequence[Scenario]) -> str:
    if not found:
        return ""
    seeds = len({run.seed for one in found for series in one.series for run in series.runs})
    parts = [counted(seeds, "seed")]
    if len(found) == 1:
        attack = [f"attack {found[0].attack}"] if found[0].undefended else []
        parts = [*attack, found[0].where.setting, found[0].where.models, *parts]
    else:
        parts = [f"{len(found)} attacks", *parts]
    return " · " + prose(", ".join(parts))


def _made_by(results: Results) -> str:
    config = dict(results.config)
    command = config.pop("command", None)
    parts = [] if command is None else [f"<pre>{esc(command, limit=2000)}</pre>"]
    parts += [definitions(config), definitions(results.versions)]
    return "".join(parts)
