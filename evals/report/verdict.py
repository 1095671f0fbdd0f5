"""The top of the report: which guards held, which did not and where, and by what measure."""

from __future__ import annotations

from collections.abc import Sequence

from grpo_guard.evals.report.failures import baselines_note
from grpo_guard.evals.report.page import note, prose
from grpo_guard.evals.report.scenarios import Scenario
from grpo_guard.evals.report.sentences import cost_headline, listed
from grpo_guard.evals.report.verdicts import (
    CRITERION,
    OPEN,
    Case,
    GuardVerdict,
    State,
    cost_text,
    guard_verdicts,
    settled,
)
from grpo_guard.evals.roles import attack_free

_CLASSES = {
    State.HELD: "good", State.FAILED: "bad", State.COSTLY: "bad", State.UNDECIDED: "open",
    State.UNTESTED: "open",
}  # fmt: skip


def verdict_section(found: Sequence[Scenario]) -> str:
    """One block per guard under test, then the criterion."""
    verdicts = guard_verdicts(found)
    if not verdicts:
        return '<p class="lede">No guard was tested in these runs.</p>' + baselines_note(found)
    blocks = "".join(_block(verdict) for verdict in verdicts)
    cost = f'<p class="lede">{prose(cost_headline(verdicts))}</p>' if len(found) > 1 else ""
    return (
        f'{cost}<ul class="verdicts">{blocks}</ul>{baselines_note(found)}{_seeds_note(found)}'
        f"<details><summary>By what measure</summary><p>{prose(CRITERION)}</p></details>"
    )


def _block(verdict: GuardVerdict) -> str:
    state = verdict.state
    lines = []
    for each in (State.FAILED, State.COSTLY, State.UNDECIDED):
        lines += [
            f"<li><b>{each.value}</b> {prose(_plain(case))}: {prose(_why(case))}.</li>"
            for case in verdict.against(each)
        ]
    held = verdict.against(State.HELD)
    if held:
        lines.append(f"<li><b>held</b> {prose(_listed([_plain(case) for case in held]))}.</li>")
    costs = [(_plain(case), case.cost) for case in verdict.cases if case.cost is not None]
    open_ones = [f"{name} {cost_text(cost)}" for name, cost in costs if settled(cost) == OPEN]
    if open_ones:
        lines.append(f"<li><b>cost in honest reward</b> {prose('; '.join(open_ones))}.</li>")
    for reason in dict.fromkeys(c.reasons for c in verdict.against(State.UNTESTED)):
        cases = [c for c in verdict.against(State.UNTESTED) if c.reasons == reason]
        names = _listed([_plain(case) for case in cases])
        lines.append(f"<li><b>not tested</b> {prose(names)}: {prose('; '.join(reason))}.</li>")
    if verdict.not_run:
        names = _listed([f"against {name}" for name in verdict.not_run])
        lines.append(f"<li><b>not run</b> {prose(names)}.</li>")
    return (
        f'<li class="{_CLASSES[state]}"><h2>{prose(verdict.defence)} '
        f'<span class="state">{state.value}</span></h2><ul>{"".join(lines)}</ul></li>'
    )


def _why(case: Case) -> str:
    return ("the attack is kept out, but " if case.kept_out else "") + "; ".join(case.reasons)


def _plain(case: Case) -> str:
    return "without attack" if attack_free(case.scenario.attack) else f"against {case.name}"


def _listed(items: Sequence[str]) -> str:
    """``against text, math and padded``."""
    names = [item.removeprefix("against ") for item in items]
    attacks = [name for name, item in zip(names, items, strict=True) if name != item]
    rest = [name for name, item in zip(names, items, strict=True) if name == item]
    parts = [f"against {listed(attacks)}"] if attacks else []
    return ", and ".join([*parts, *rest])


def _seeds_note(found: Sequence[Scenario]) -> str:
    fewest = min(series.seeds for one in found for series in one.attacked or one.series)
    if fewest > 1:
        return ""
    return note("Some of these figures come from 1 seed: nothing says how another would differ.")
