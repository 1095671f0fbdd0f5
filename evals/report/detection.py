"""The report's part for results without training runs: what was rejected of which kind."""

from __future__ import annotations

from grpo_guard.evals.report.figures import Rate
from grpo_guard.evals.report.matrix import level
from grpo_guard.evals.report.page import html_table, note, shown_example
from grpo_guard.evals.report.roc import roc_section
from grpo_guard.evals.report.tables import DASH, Cell, Shade, Table
from grpo_guard.evals.results import Results, Summary

HONEST = "honest"
CONTROL = "control:"
REJECTED = "rejected"
_MOST_EXAMPLES = 4
_MOST_IN_TITLE = 2
_FALSE = (0.005, 0.02, 0.1)  # shares of honest completions rejected
_MISSED = (0.02, 0.1, 0.5)  # shares of poison that passed


def detection_sentence(results: Results) -> str:
    """The false positives first: a detection rate means nothing without them."""
    found = [
        (row.defence, rate)
        for row in results.summary
        if (row.metric, row.attack) == (REJECTED, HONEST) and (rate := _rate(row))
    ]
    if not found:
        return "Results"
    if len(found) > _MOST_IN_TITLE:
        rate = max((rate for _, rate in found), key=lambda rate: rate.value or 0.0)
        return (
            f"{len(found)} verifiers each rejected at most {rate.count:,} of {rate.total:,} honest "
            f"completions ({rate.value_text})."
        )
    parts = [
        f"{name} rejected {rate.count:,} of {rate.total:,} honest completions ({rate.value_text})"
        for name, rate in found
    ]
    return f"{'; '.join(parts)}."


def detection_section(results: Results) -> str:
    """Rates by kind and verifier, the ROC, and some of the rejected completions."""
    rejected = [row for row in results.summary if row.metric == REJECTED]
    others = [row for row in results.summary if row.metric != REJECTED]
    parts = []
    if rejected:
        parts += [
            "<h2>Rejected, by kind of completion</h2>",
            note(
                "Honest ones first: that is the false-positive rate at which the others were "
                "detected. Wilson 95 % intervals. Blue is as it should be, the redder the worse; "
                "negative controls are not shaded, since some of them may pass."
            ),
            html_table(_rejected_matrix(rejected), kind="stack matrix"),
        ]
    if others:
        parts.append(html_table(_figure_table(others)))
    parts.append(roc_section(results))
    poisoned = [example for example in results.examples if example.span][:_MOST_EXAMPLES]
    if poisoned:
        parts.append("<h2>Completions to look at</h2>")
    for example in poisoned:
        parts.append(shown_example(example, f"One rejected completion: {example.kind or 'poison'}"))
    return "".join(parts)


def _rejected_matrix(rows: list[Summary]) -> Table:
    """One row per kind of completion, one column per verifier."""
    cells = {(row.attack, row.defence): row for row in rows}
    verifiers = list(dict.fromkeys(row.defence for row in rows))
    kinds = sorted(dict.fromkeys(row.attack for row in rows), key=_place)
    table: list[list[Cell]] = []
    for kind in kinds:
        found = (cells.get((kind, verifier)) for verifier in verifiers)
        table.append([kind, *(_rejected_cell(row) if row else DASH for row in found)])
    return Table(["Kind", *verifiers], table)


def _place(kind: str) -> int:
    return 0 if kind == HONEST else 2 if kind.startswith(CONTROL) else 1


def _rejected_cell(row: Summary) -> Cell:
    rate = _rate(row)
    if rate is None or rate.value is None:
        return DASH
    detail: tuple[str, ...] = (rate.count_text, rate.interval_text)
    if row.abstained:
        detail = (*detail, f"abstained on {row.abstained:,}")
    if row.attack == HONEST:
        return Shade(rate.value_text, detail, level(rate.value, _FALSE))
    shade = None if row.attack.startswith(CONTROL) else level(1 - rate.value, _MISSED)
    return Shade(rate.value_text, detail, shade)


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
