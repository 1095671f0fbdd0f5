"""The report's part for results without training runs: what was rejected of which kind."""

from __future__ import annotations

from grpo_guard.evals.figures import Rate
from grpo_guard.evals.page import html_table, note, shown_example
from grpo_guard.evals.results import Results, Summary
from grpo_guard.evals.tables import DASH, Cell, Table

HONEST = "honest"
REJECTED = "rejected"
_MOST_EXAMPLES = 4


def detection_sentence(results: Results) -> str:
    """The false positives first: a detection rate means nothing without them."""
    parts = []
    for row in results.summary:
        rate = _rate(row) if (row.metric, row.attack) == (REJECTED, HONEST) else None
        if rate:
            counts = f"{rate.count:,} of {rate.total:,} honest completions"
            parts.append(f"{row.defence} rejected {counts} ({rate.value_text})")
    return f"{'; '.join(parts)}." if parts else "Results"


def detection_section(results: Results) -> str:
    """The table of rates, and some of the rejected completions."""
    rejected = [row for row in results.summary if row.metric == REJECTED]
    others = [row for row in results.summary if row.metric != REJECTED]
    parts = []
    if rejected:
        parts.append(
            "<h2>Rejected, by kind of completion</h2>"
            + note(
                "Honest ones first: that is the false-positive rate at which the others were "
                "detected. Wilson 95 % intervals."
            )
        )
        parts.append(html_table(_rejected_table(rejected)))
    if others:
        parts.append(html_table(_figure_table(others)))
    poisoned = [example for example in results.examples if example.span][:_MOST_EXAMPLES]
    if poisoned:
        parts.append("<h2>Completions to look at</h2>")
    for example in poisoned:
        parts.append(shown_example(example, f"One rejected completion: {example.kind or 'poison'}"))
    return "".join(parts)


def _rejected_table(rows: list[Summary]) -> Table:
    cells: list[list[Cell]] = []
    for row in sorted(rows, key=lambda row: row.attack != HONEST):
        abstained = DASH if row.abstained is None else Rate(row.abstained, row.n).count_text
        cells.append([row.attack, row.defence, _rate(row) or DASH, abstained])
    return Table(["Kind", "Verifier", "Rejected", "Abstained"], cells)


def _figure_table(rows: list[Summary]) -> Table:
    cells: list[list[Cell]] = []
    for row in rows:
        interval = f"{_number(row.low)}–{_number(row.high)}"
        cells.append(
            [row.attack, row.defence, row.metric, _number(row.mean), interval, f"{row.n:,}"]
        )
    return Table(["Attack", "Defence", "Figure", "Mean", "95 %", "n"], cells)


def _rate(row: Summary) -> Rate | None:
    """The count behind a row: its own, else what its mean must come from."""
    count = row.rejected
    if count is None and row.mean is not None:
        count = round(row.mean * row.n)
    return Rate(count, row.n) if count is not None and 0 <= count <= row.n else None


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
