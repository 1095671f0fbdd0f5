"""The report's section on detections: rejection rates by kind of completion, and ROC curves."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from grpo_guard.evals.report.charts import STYLES, Axis, Line, line_chart
from grpo_guard.evals.report.page import esc, figure, note, prose, shown_example
from grpo_guard.evals.report.tables import DASH, Cell, Table, rate_cell
from grpo_guard.evals.results import CONTROL, HONEST, REJECTED, Results, Summary
from grpo_guard.evals.stats import Rate, auroc, percent

_MOST_EXAMPLES = 4
_MOST_IN_TITLE = 2
_MOST_CURVES = 5
_FALSE = (0.005, 0.02, 0.1)  # shares of honest completions rejected
_MISSED = (0.02, 0.1, 0.5)  # shares of poison that passed
_LEAST: Final = 1e-3  # left end of the axis of false positives
# Logarithmic, because guards are used at rates that a linear axis would not show.
_FALSE_POSITIVES: Final = Axis(
    "honest completions rejected", (_LEAST, 1.0),
    ((0.001, "0.1 %"), (0.01, "1 %"), (0.1, "10 %"), (1.0, "100 %")), log=True,
)  # fmt: skip
_NOTE = (
    "At every threshold of the p-value. The axis of false positives is logarithmic, and a curve "
    "begins at the smallest rate that the number of honest completions can show. The area under a "
    "curve is given below its name."
)

_CONTROLS: Final = (
    "control:NAME is a negative control: no attack, but completions that no honest node sends, "
    "such as random tokens, an empty answer or another model's text. A guard that rejects none is "
    "not looking. They are not shaded, since some may pass: rules for texts see no swapped token."
)


_NOTHING: Final = (
    "Accepted poison that was found earns nothing if its answer is wrong: no grader pays for it, "
    "so it teaches nothing. The rates count it as not rejected."
)


def detection_sentence(results: Results) -> str:
    """State the detections with the false positives, without which they mean nothing."""
    found = [
        (row.defence, rate)
        for row in results.summary
        if (row.metric, row.attack) == (REJECTED, HONEST) and (rate := row.rate)
    ]
    caught = _caught(results)
    passed = {name: passed_text(own) for name, own in _attacks(results).items()}
    if not found:
        return "Results"
    if len(found) > _MOST_IN_TITLE:
        rate = max((rate for _, rate in found), key=lambda rate: rate.value or 0.0)
        best = max(caught, key=lambda name: caught[name].value or 0.0, default=None)
        most = ""
        if best is not None:
            most = f"; {best} caught most, {_poisoned(caught[best], passed[best])}"
        return (
            f"{len(found)} verifiers each rejected at most {rate.count:,} of {rate.total:,} honest "
            f"completions ({rate.value_text}){most}."
        )
    parts = [
        f"{name} rejected {rate.count:,} of {rate.total:,} honest completions ({rate.value_text})"
        + (f" and {_poisoned(caught[name], passed[name])}" if name in caught else "")
        for name, rate in found
    ]
    return f"{'; '.join(parts)}."


def _poisoned(rate: Rate, passed: str) -> str:
    caught = f"{rate.count:,} of {rate.total:,} poisoned ones ({rate.value_text})"
    return f"{caught}; of those that passed, {passed}" if passed else caught


def passed_text(rows: Sequence[Summary]) -> str:
    """Say how many of the accepted poisoned completions earn nothing; "" if none do."""
    nothing = sum(row.earns_nothing or 0 for row in rows)
    if not nothing:
        return ""
    count = f"{nothing:,} of {sum(row.accepted for row in rows):,}"
    return f"{count} were found, but their answer is wrong, so they earn nothing"


def about_rows(found: Sequence[Summary]) -> list[str]:
    """Explain rows of the printed table that look like failures but are not."""
    lines = []
    honest = {row.defence: row.n for row in found if row.attack == HONEST}
    fewer = {
        f"{row.attack} {row.n}": honest[row.defence]
        for row in found
        if row.attack != HONEST
        and not row.attack.startswith(CONTROL)
        and 0 < row.n < honest.get(row.defence, 0)
    }
    if fewer:
        lines.append(
            f"of {max(fewer.values()):,} honest completions, attacks change those that they can: "
            f"{', '.join(fewer)}"
        )
    if any(row.attack.startswith(CONTROL) for row in found):
        lines.append(
            "control:NAME is a check of the guard, not an attack: text that no honest node sends; "
            "rules for texts accept some of it, such as another model's"
        )
    return lines


def _attacks(results: Results) -> dict[str, list[Summary]]:
    """Return each verifier's rejection rates of poison; controls are not attacks."""
    found: dict[str, list[Summary]] = {}
    for row in results.summary:
        rate = row.rate if row.metric == REJECTED else None
        attack = row.attack != HONEST and not row.attack.startswith(CONTROL)
        if rate is not None and rate.total and attack:
            found.setdefault(row.defence, []).append(row)
    return found


def _caught(results: Results) -> dict[str, Rate]:
    """Return each verifier's rejection rate over all attacks combined."""
    rates = {
        name: [rate for row in rows if (rate := row.rate)]
        for name, rows in _attacks(results).items()
    }
    return {
        name: Rate(sum(rate.count for rate in own), sum(rate.total for rate in own))
        for name, own in rates.items()
    }


def detection_section(results: Results) -> str:
    """Return rates by kind and verifier, ROC curves, and some of the poisoned completions."""
    rejected = rejected_table(results)
    parts = []
    if rejected:
        parts += [
            "<h2>Rejected, by kind of completion</h2>",
            note(
                "Honest ones come first: theirs is the false-positive rate at which the others "
                "were detected. Wilson 95 % intervals. Blue is as it should be, the redder the "
                "worse."
            ),
            rejected.html("stack matrix"),
        ]
        if any(row.earns_nothing for row in results.summary):
            parts.append(note(_NOTHING))
        if any(row.attack.startswith(CONTROL) for row in results.summary):
            parts.append(note(_CONTROLS))
    if credited := members_tables(results):
        parts += [
            "<h2>Which members rejected</h2>",
            note("Several members of a guard may reject the same completion; each is counted."),
        ]
        for guard, table in credited.items():
            parts += [f"<h3>{prose(guard)}</h3>", table.html("stack matrix")]
    parts.append(roc_section(results))
    poisoned = [example for example in results.examples if example.span]
    if poisoned:
        parts.append("<h2>Completions to look at</h2>")
    for outcome, what in (("accept", "Poison that passed"), ("reject", "One rejected completion")):
        shown = [example for example in poisoned if example.verdict.outcome == outcome]
        for example in shown[:_MOST_EXAMPLES]:
            but = ", but earns nothing" if example.earns_nothing else ""
            parts.append(shown_example(example, f"{what}{but}: {example.kind or 'poison'}"))
    return "".join(parts)


def rejected_table(results: Results) -> Table | None:
    """Build a table with a row per kind of completion, honest first, and a column per verifier."""
    rows = [row for row in results.summary if row.metric == REJECTED]
    if not rows:
        return None
    cells = {(row.attack, row.defence): _rejected_cell(row) for row in rows}
    verifiers = list(dict.fromkeys(row.defence for row in rows))
    kinds = sorted(dict.fromkeys(row.attack for row in rows), key=_order)
    return Table(
        ["Kind", *verifiers],
        [[kind, *(cells.get((kind, one), DASH) for one in verifiers)] for kind in kinds],
    )


def members_tables(results: Results) -> dict[str, Table]:
    """Build a table for each guard that has members, with kinds as rows and members as columns.

    There are many kinds with long names, which would not fit on a page as columns.
    """
    rows = [row for row in results.summary if row.metric == REJECTED]
    found = {}
    for guard in dict.fromkeys(row.defence for row in rows if row.members):
        own = {row.attack: row for row in rows if row.defence == guard}
        members = list(dict.fromkeys(name for row in own.values() for name in row.members))
        cells: list[list[Cell]] = [
            [kind, *(f"{own[kind].members.get(name, 0):,} / {own[kind].n:,}" for name in members)]
            for kind in sorted(own, key=_order)
        ]
        found[guard] = Table(["Kind", *members], cells)
    return found


def _order(kind: str) -> int:
    """Sort key that puts honest work first and controls last."""
    return 0 if kind == HONEST else 2 if kind.startswith(CONTROL) else 1


def _rejected_cell(row: Summary) -> Cell:
    details = [f"abstained on {row.abstained:,}"] if row.abstained else []
    if row.earns_nothing:
        details.append(f"{row.earns_nothing:,} of {row.accepted:,} accepted earn nothing")
    if row.attack == HONEST:
        return rate_cell(row.rate, *details, limits=_FALSE)
    limits = () if row.attack.startswith(CONTROL) else _MISSED
    return rate_cell(row.rate, *details, limits=limits, missed=True)


@dataclass(frozen=True, slots=True)
class Roc:
    """ROC curve of one attack: poison caught against honest work rejected, by p-value threshold.

    Attributes:
        points: (false-positive rate, share caught) at each threshold, in ascending order.
        auc: Area under the curve: the probability that a poisoned completion has a smaller p-value
            than an honest one, with ties counted half.
        caught: Share of poison caught without rejecting any honest completion.
    """

    kind: str
    points: tuple[tuple[float, float], ...]
    auc: float
    caught: Rate
    honest: int


def roc(kind: str, honest: Sequence[float], poison: Sequence[float]) -> Roc:
    """Compute the ROC curve of two non-empty lists of p-values; small values indicate poison."""
    ours, theirs = sorted(honest), sorted(poison)
    points = [(0.0, 0.0)]
    for threshold in sorted({*ours, *theirs}):
        false = bisect_right(ours, threshold) / len(ours)
        points.append((false, bisect_right(theirs, threshold) / len(theirs)))
    caught = Rate(sum(value < ours[0] for value in theirs), len(theirs))
    return Roc(kind, tuple(points), auroc(theirs, ours), caught, len(ours))


def roc_section(results: Results) -> str:
    """Return ROC charts and a table; empty without p-values for both honest work and poison."""
    figures = []
    rows: list[list[Cell]] = []
    without = [name for name in results.p_values if not _graded(results, name)]
    unlike = [name for name in results.p_values if not _agrees(results, name)]
    for verifier, kinds in results.p_values.items():
        if verifier in without or verifier in unlike:
            continue
        honest = results.honest_p_values.get(verifier, [])
        curves = [
            roc(kind, honest, values)
            for kind, values in kinds.items()
            if honest and values and not kind.startswith(CONTROL)
        ][:_MOST_CURVES]
        if not curves:
            continue
        count = f"{len(honest):,} honest completions."
        figures.append(figure(esc(verifier, limit=60), count, _chart(verifier, curves)))
        upper = Rate(0, len(honest)).interval or (0.0, 1.0)
        for one in curves:
            most = f"{percent(upper[1])} at most"
            rows.append([verifier, one.kind, f"{one.auc:.4f}", one.caught, most])
    if not figures:
        return _unlike(unlike)
    header = ["Verifier", "Kind", "Area under the curve", "Caught with no honest one rejected"]
    header.append("False positives there, 95 %")
    return (
        f"<h2>Caught against wrongly rejected</h2>{note(_NOTE)}{_without(without)}{_unlike(unlike)}"
        f'<div class="charts">{"".join(figures)}</div>{Table(header, rows).html()}'
    )


def _graded(results: Results, verifier: str) -> bool:
    """Whether any of a verifier's p-values lies between 0 and 1, so that there are thresholds."""
    kinds = results.p_values.get(verifier, {}).values()
    every = (results.honest_p_values.get(verifier, []), *kinds)
    return any(0.0 < value < 1.0 for values in every for value in values)


def _agrees(results: Results, verifier: str) -> bool:
    """Whether some threshold of a verifier's p-values rejects as many completions of each kind as
    the table says. None does if rejected ones have larger p-values than accepted ones."""
    values = {HONEST: results.honest_p_values.get(verifier, []), **results.p_values[verifier]}
    counted = [
        (sorted(values[row.attack]), row.rejected)
        for row in results.summary
        if (row.metric, row.defence) == (REJECTED, verifier)
        and row.rejected is not None
        and row.n == len(values.get(row.attack, ()))
    ]
    thresholds = {-1.0, *(value for own, _ in counted for value in own)}
    return any(
        all(bisect_right(own, threshold) == rejected for own, rejected in counted)
        for threshold in thresholds
    )


def _unlike(names: Sequence[str]) -> str:
    """Return a note naming the verifiers whose p-values contradict the table."""
    if not names:
        return ""
    return note(
        f"No curve for {', '.join(names)}: no threshold of the p-values rejects what the table "
        "says was rejected. Measure again if the file is from 0.3.0 or earlier."
    )


def _without(names: Sequence[str]) -> str:
    """Return a note naming the verifiers that have no curve."""
    if not names:
        return ""
    return note(f"No curve for {', '.join(names)}: rules that answer yes or no have no threshold.")


def _chart(verifier: str, curves: Sequence[Roc]) -> str:
    lines = [_line(one, 1 + place % (STYLES - 1)) for place, one in enumerate(curves)]
    summary = ", ".join(f"{one.kind}: area under the curve {one.auc:.3f}" for one in curves)
    return line_chart(
        lines,
        describe=f"ROC of {verifier}. {summary}",
        show=lambda value: f"{100 * value:.0f} %",
        values="poisoned completions rejected",
        least_top=1.0,
        axis=_FALSE_POSITIVES,
    )


def _line(one: Roc, style: int) -> Line:
    """Build a curve that starts at the smallest rate the honest completions can resolve."""
    start = max(_LEAST, 1 / one.honest)
    first = max(caught for rate, caught in one.points if rate <= start)
    points = [(start, first), *(point for point in one.points if point[0] > start)]
    return Line(
        one.kind, [caught for _, caught in points], style,
        at=[rate for rate, _ in points], note=f"{one.auc:.3f}",
    )  # fmt: skip
