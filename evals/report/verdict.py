"""The top of the report: which guards held, which did not and where, and by what measure."""

from __future__ import annotations

from collections.abc import Sequence

from grpo_guard.evals.report.failures import baselines_note
from grpo_guard.evals.report.page import note, prose
from grpo_guard.evals.report.scenarios import Scenario
from grpo_guard.evals.report.sentences import cost_headline, listed
from grpo_guard.evals.report.verdicts import CRITERION, Case, GuardVerdict, State, guard_verdicts
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
    kept = case.kept_out and not attack_free(case.scenario.attack)
    return ("the attack is kept out, but " if kept else "") + "; ".join(case.reasons)


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
    if fewest > 2:
        return ""
    seeds = "one seed" if fewest == 1 else "two seeds"
    return note(
        f"Some of these figures come from {seeds} alone: another seed may differ by more than the "
        "intervals say."
    )
