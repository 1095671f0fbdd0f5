"""ROC: poison caught against honest work rejected, at every threshold of a verifier's p-value.

The horizontal axis is logarithmic, since a guard is used at false-positive rates that a linear axis
would not show. To the left of one honest completion in all that were measured nothing is known, and
nothing is drawn.
"""

from __future__ import annotations

import html
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from grpo_guard.evals.report.charts import STYLES, spread, ticks_below
from grpo_guard.evals.report.excerpt import visible
from grpo_guard.evals.report.figures import Rate, percent
from grpo_guard.evals.report.page import figure, html_table, note
from grpo_guard.evals.report.tables import Cell, Table
from grpo_guard.evals.results import Results
from grpo_guard.evals.stats import auroc

_WIDTH, _HEIGHT = 380, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 94, 12, 36
_LABEL_GAP = 17
_MOST_CURVES = 5
_NOTE = (
    "At every threshold of the p-value. The axis of false positives is logarithmic, and a curve "
    "begins where the honest completions that were measured begin to say something."
)
_LEAST = 1e-3  # left end of the axis, as a false-positive rate


@dataclass(frozen=True, slots=True)
class Roc:
    """One kind of poison under one verifier.

    Attributes:
        kind: The attack.
        points: (false-positive rate, share caught), each reached by some threshold, rising.
        auc: Area under the curve: how often a poisoned completion has a smaller p-value than an
            honest one, ties counted half.
        caught_at_none: Caught at the strictest threshold that rejects no honest completion.
        honest, poison: How many completions there were.
    """

    kind: str
    points: tuple[tuple[float, float], ...]
    auc: float
    caught_at_none: int
    honest: int
    poison: int


def roc(kind: str, honest: Sequence[float], poison: Sequence[float]) -> Roc:
    """The curve; a small p-value speaks for poison. Both must have values."""
    ours, theirs = sorted(honest), sorted(poison)
    points = [(0.0, 0.0)]
    for threshold in sorted({*ours, *theirs}):
        false = bisect_right(ours, threshold) / len(ours)
        points.append((false, bisect_right(theirs, threshold) / len(theirs)))
    none = sum(value < ours[0] for value in theirs)
    return Roc(kind, tuple(points), auroc(theirs, ours), none, len(ours), len(theirs))


def roc_section(results: Results) -> str:
    """A chart and a table per verifier; empty without p-values of honest work and of poison."""
    figures = []
    rows: list[list[Cell]] = []
    for verifier, kinds in results.p_values.items():
        honest = results.honest_p_values.get(verifier, [])
        curves = [
            roc(kind, honest, values)
            for kind, values in kinds.items()
            if honest and values and not kind.startswith("control:")
        ][:_MOST_CURVES]
        if not curves:
            continue
        name = html.escape(visible(verifier, limit=60))
        count = f"{len(honest):,} honest completions."
        figures.append(figure(name, count, _chart(verifier, curves)))
        for one in curves:
            caught = Rate(one.caught_at_none, one.poison)
            rows.append([verifier, one.kind, f"{one.auc:.4f}", caught, f"{_upper(one)} at most"])
    if not figures:
        return ""
    header = ["Verifier", "Kind", "Area under the curve", "Caught with no honest one rejected"]
    header.append("False positives there, 95 %")
    return (
        f"<h2>Caught against wrongly rejected</h2>{note(_NOTE)}"
        f'<div class="charts">{"".join(figures)}</div>{html_table(Table(header, rows))}'
    )


def _upper(one: Roc) -> str:
    interval = Rate(0, one.honest).interval
    return percent(interval[1]) if interval else "–"


def _chart(verifier: str, curves: Sequence[Roc]) -> str:
    parts = [_axes()]
    ends = []
    for place, one in enumerate(curves):
        style = f"s{1 + place % (STYLES - 1)}"
        parts.append(f'<path class="line {style}" d="{_path(one)}"/>')
        ends.append(_y(_at(one, max(_LEAST, 1 / one.honest))))
    placed = spread(ends, _LABEL_GAP, _TOP + 8, _HEIGHT - _BOTTOM - 4)
    for place, (one, at) in enumerate(zip(curves, placed, strict=True)):
        style = f"s{1 + place % (STYLES - 1)}"
        label = visible(one.kind, limit=13)
        parts.append(f'<text class="label {style}" x="{_WIDTH - _RIGHT + 9}" y="{at + 4:.1f}">')
        parts.append(f"{html.escape(label)}</text>")
    told = ", ".join(f"{one.kind}: area under the curve {one.auc:.3f}" for one in curves)
    described = html.escape(visible(f"ROC of {verifier}. {told}", limit=600))
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{described}">'
        f"{''.join(parts)}</svg>"
    )


def _at(one: Roc, false: float) -> float:
    """Share caught at no more than this false-positive rate."""
    return max(caught for rate, caught in one.points if rate <= false)


def _path(one: Roc) -> str:
    """Steps from the smallest rate that the honest completions can show."""
    start = max(_LEAST, 1 / one.honest)
    parts = [f"M{_x(start):.1f} {_y(_at(one, start)):.1f}"]
    for rate, caught in one.points:
        if rate > start:
            parts.append(f"H{_x(rate):.1f}V{_y(caught):.1f}")
    return "".join(parts)


def _x(rate: float) -> float:
    share = math.log(max(rate, _LEAST) / _LEAST) / math.log(1 / _LEAST)
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * share


def _y(caught: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * caught


def _axes() -> str:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = []
    for share in (0.0, 0.5, 1.0):
        kind = "axis" if share == 0 else "grid"
        parts.append(f'<path class="{kind}" d="M{_LEFT} {_y(share):.1f}H{right}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 6}" y="{_y(share) + 4:.1f}" ')
        parts.append(f'text-anchor="end">{100 * share:.0f} %</text>')
    rates = ((0.001, "0.1 %"), (0.01, "1 %"), (0.1, "10 %"), (1.0, "100 %"))
    ticks = [(_x(rate), name) for rate, name in rates]
    name = "honest completions rejected"
    parts += ticks_below(ticks, bottom, _HEIGHT, (_LEFT + right) / 2, name)
    return "".join(parts)
