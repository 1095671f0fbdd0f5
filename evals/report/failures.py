"""Completions that a person should read: what a guard let pass, and what it took from the honest.

Mistakes come first. What a guard rejected rightly is shown once, so that the attack can be seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from grpo_guard.evals.report.page import note, shown_example
from grpo_guard.evals.report.scenarios import Scenario, scenario_names
from grpo_guard.evals.report.series import Series
from grpo_guard.evals.results import ACCEPTED_POISON, REJECTED_CORRECT, REJECTED_POISON
from grpo_guard.evals.roles import under_test

_MOST: Final = {ACCEPTED_POISON: 2, REJECTED_CORRECT: 2, REJECTED_POISON: 1}
_TITLES: Final = {
    ACCEPTED_POISON: "Poison that {guard} accepted",
    REJECTED_CORRECT: "A right answer that {guard} rejected",
    REJECTED_POISON: "Poison that {guard} rejected",
}
_MOST_IN_ALL: Final = 24


def failures_section(found: Sequence[Scenario]) -> str:
    """Examples of the guards under test, kind by kind."""
    deciding = under_test(series.defence for one in found for series in one.guarded)
    guarded = [
        (name, series)
        for name, scenario in zip(scenario_names(found), found, strict=True)
        for series in scenario.guarded
        if series.defence in deciding
    ]
    shown = [
        part for kind in _TITLES for name, series in guarded for part in _of(kind, series, name)
    ]
    if not shown:
        return ""
    left = len(shown) - _MOST_IN_ALL
    more = note(f"{left} more are in the results file.") if left > 0 else ""
    parts = [
        "<h2>Completions to look at</h2>",
        note(
            "Mistakes first, where the runs made and kept any: poison that passed, right answers "
            "that were rejected. The counts are in the tables above."
        ),
        *shown[:_MOST_IN_ALL],
        more,
    ]
    return "".join(parts)


def _of(kind: str, series: Series, name: str) -> list[str]:
    """The last ones of a series: what passes at the end says more than what passed at first."""
    examples = [one for run in series.runs for one in run.examples if one.kind == kind]
    guard = "the guard" if series.label == "guarded" else series.label
    title = f"{_TITLES[kind].format(guard=guard)}: {name}"
    return [shown_example(example, title) for example in examples[-_MOST[kind] :]]


def baselines_note(found: Sequence[Scenario]) -> str:
    """Which defences are there for comparison only."""
    present = [series.defence for one in found for series in one.guarded]
    deciding = under_test(present)
    others = [name for name in dict.fromkeys(present) if name not in deciding]
    if not others:
        return ""
    return note(f"For comparison, without a say in this verdict: {', '.join(others)}.")
