"""Shows a results file without an HTML page: on a terminal, or as a Markdown table."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from grpo_guard.core.quoting import counted
from grpo_guard.evals.report.cells import (
    BRIEF,
    EVERYTHING,
    OUTCOME,
    REJECTIONS,
    curve_table,
    leaving_table,
    listing,
)
from grpo_guard.evals.report.detection import rejected_table
from grpo_guard.evals.report.excerpt import excerpt, visible
from grpo_guard.evals.report.merge import load_all, merged, pooled
from grpo_guard.evals.report.scenarios import Scenario, scenarios
from grpo_guard.evals.report.sentences import cost_sentence, verdict_lines, verdict_sentence
from grpo_guard.evals.report.tables import Table
from grpo_guard.evals.report.verdicts import guard_verdicts
from grpo_guard.evals.results import Example, Results

_IN_NUMBERS = "In numbers (the end is the last 10 iterations; intervals 95 %)"
_REJECTED = "What the guard rejected (counts with Wilson’s intervals)"


def markdown_of(places: Sequence[Path]) -> str:
    """Return the Markdown tables for one or more folders or results files."""
    found = load_all(places)
    runs, detections = merged(found), pooled(found)
    tables = [table.markdown() for one in detections if (table := rejected_table(one))]
    return "\n".join([markdown_table(runs), *tables] if runs.runs or not tables else tables)


def markdown_table(results: Results) -> str:
    """Return the outcomes and rejections for every attack as a single Markdown table.

    If attackers leave, a second table shows how much of their attack remains.
    """
    found = scenarios(results)
    tables = [listing(EVERYTHING, found, guarded=False), leaving_table(found)]
    return "\n".join(table.markdown() for table in tables if table is not None)


def print_results(console: Console, results: Results, files: Sequence[Path]) -> None:
    """Print the verdict, the tables, one rejected completion, and the files' locations."""
    for scenario in scenarios(results):
        console.print()
        console.print(_prose(verdict_sentence(scenario), "bold"))
        console.print(_prose(cost_sentence(scenario)))
        for title, table in (
            ("Iteration by iteration", curve_table(scenario)),
            (_IN_NUMBERS, listing(OUTCOME, [scenario], guarded=False)),
            (_REJECTED, listing(REJECTIONS, [scenario], guarded=True)),
            ("After the attacker left", leaving_table([scenario])),
        ):
            if table is not None:
                console.print()
                console.print(Text(title, style="bold"))
                _print_narrow(console, table)
        _print_examples(console, scenario)
    for file in files:
        console.print(Text(f"wrote {file}"), soft_wrap=True)


def print_outcomes(console: Console, results: Results) -> None:
    """Print a row per swarm, in at most six columns, and then the verdicts.

    Everything else is in the report. Without a terminal, the table is 80 characters wide.
    """
    found = scenarios(results)
    _print_narrow(console, listing(BRIEF, found, guarded=False))
    for verdict in guard_verdicts(found):
        for what, text in verdict_lines(verdict):
            console.print(_prose(f"{verdict.defence}: {what} {text}."))


def _print_narrow(console: Console, table: Table) -> None:
    shown = table.narrow(console.width)
    console.print(shown.rich(room=console.width))
    if left := len(table.header) - len(shown.header):
        console.print(Text(f"({counted(left, 'more column')} in the report)", style="dim"))


def _prose(text: str, style: str = "") -> Text:
    """Format a sentence so that numbers keep their unit when it wraps."""
    return Text(visible(text, limit=2000).replace(" %", "\u00a0%"), style=style)


def _print_examples(console: Console, scenario: Scenario) -> None:
    for series in scenario.guarded:
        example = next((run.example for run in series.runs if run.example), None)
        if example is not None:
            console.print()
            console.print(Text("One rejected completion, its poison marked", style="bold"))
            shown = marked(example, colour=console.is_terminal and not console.no_color)
            console.print(Padding(shown, (0, 0, 0, 2)))
            for finding in example.verdict.findings[:3]:
                why = f"{visible(example.verdict.verifier)}: {visible(finding.message, limit=400)}"
                console.print(Padding(Text(why), (0, 0, 0, 2)))


def marked(example: Example, *, colour: bool) -> Text:
    """Return the completion as rich text; without colour, [[ and ]] enclose the poison."""
    spans = [finding.char_span for finding in example.verdict.findings if finding.char_span]
    text = Text()
    inside = False
    for piece in excerpt(example.text, example.span, spans):
        if piece.poison != inside and not colour:
            text.append("[[" if piece.poison else "]]")
        inside = piece.poison
        styles = ["black on yellow"] if piece.poison else []
        styles += ["underline"] if piece.evidence else []
        styles += ["dim"] if piece.cut else []
        shown = f"<{piece.text}>" if piece.hidden else piece.text
        text.append(shown, style=" ".join(styles) if colour else "")
    if inside and not colour:
        text.append("]]")
    return text
