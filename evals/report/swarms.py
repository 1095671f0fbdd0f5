"""The report's section on training runs: which guards held, what attacks achieved, and the cost."""

from collections.abc import Sequence
from typing import Final

from grpo_guard.evals.report.cells import (
    LENGTHS,
    LOSSES,
    OUTCOME,
    REJECTED,
    REJECTIONS,
    SHARES,
    Fill,
    accepted,
    leaving_table,
    listing,
    loss,
    matrix,
    reached,
    right_rejected,
    seconds,
)
from grpo_guard.evals.report.curves import curves_section
from grpo_guard.evals.report.page import note, prose, shown_example
from grpo_guard.evals.report.scenarios import Scenario
from grpo_guard.evals.report.sentences import cost_sentence, verdict_lines
from grpo_guard.evals.report.series import WINDOW, Series
from grpo_guard.evals.report.verdicts import BOUND, CRITERION, GuardVerdict, State, guard_verdicts
from grpo_guard.evals.results import ACCEPTED_POISON, REJECTED_CORRECT, REJECTED_POISON
from grpo_guard.evals.roles import under_test
from grpo_guard.evals.stats import percent

_CLASSES: Final = {State.HELD: "good", State.FAILED: "bad", State.COSTLY: "bad"}
# Kind -> (number per series, title); mistakes come first. One correct rejection is included to show
# what the attack looks like.
_EXAMPLES: Final = {
    ACCEPTED_POISON: (2, "Poison that {guard} accepted"),
    REJECTED_CORRECT: (2, "A right answer that {guard} rejected"),
    REJECTED_POISON: (1, "Poison that {guard} rejected"),
}
_MOST_EXAMPLES: Final = 24


def swarms_section(found: Sequence[Scenario]) -> str:
    """Return the full section on training runs."""
    alone = len(found) == 1
    parts = [_verdicts(found)]
    if cost := cost_sentence(found[0]) if alone else "":
        parts.insert(0, f'<p class="lede">{prose(cost)}</p>')
    if not alone or len(found[0].guarded) > 1:
        parts.append(_matrices(found))
    bands = (
        "Lines are means over the seeds; areas are 95 % intervals over them (Student’s t), from "
        "three seeds on."
    )
    parts += ["<h2>Round by round</h2>", note(bands)]
    parts += [curves_section(one, alone=alone) for one in found]
    left = leaving_table(found)
    if left is not None:
        parts += ["<h2>After the attacker left</h2>", left.html()]
    parts += [_whole_tables(found[0]) if alone else _honest_work(found), _time_taken(found)]
    parts.append(_examples(found))
    return "\n".join(part for part in parts if part)


def _verdicts(found: Sequence[Scenario]) -> str:
    """Return one block per guard under test, then the criterion."""
    verdicts = guard_verdicts(found)
    present = dict.fromkeys(series.defence for one in found for series in one.guarded)
    others = [name for name in present if name not in under_test(present)]
    compared = f"For comparison, without effect on this verdict: {', '.join(others)}."
    beside = note(compared) if others else ""
    if not verdicts:
        return '<p class="lede">No guard was tested in these runs.</p>' + beside
    seeds = {series.seeds for one in found for series in one.attacked or one.series}
    if 1 in seeds:
        some = "These figures" if seeds == {1} else "Some of these figures"
        beside += note(f"{some} come from 1 seed and do not show how another would differ.")
    return (
        f'<ul class="verdicts">{"".join(map(_block, verdicts))}</ul>{beside}'
        f"<details><summary>The criterion</summary><p>{prose(CRITERION)}</p></details>"
    )


def _block(verdict: GuardVerdict) -> str:
    state = verdict.state
    lines = verdict_lines(verdict)
    items = "".join(f"<li><b>{prose(what)}</b> {prose(text)}.</li>" for what, text in lines)
    return (
        f'<li class="{_CLASSES.get(state, "open")}"><h2>{prose(verdict.defence)} '
        f'<span class="state">{state.value}</span></h2><ul>{items}</ul></li>'
    )


def _part(title: str, remark: str, found: Sequence[Scenario], fill: Fill, **more: bool) -> str:
    table = matrix(found, fill, **more).html("stack matrix")
    return f"<h2>{title}</h2>{note(remark)}{table}"


def _matrices(found: Sequence[Scenario]) -> str:
    """Return three tables: attack success, honest work rejected, poison accepted."""
    remark = (
        f"Attack success over the last {WINDOW} iterations; for attacks on length (“×”) mean "
        "length relative to the attack-free run’s. Means with 95 % intervals over the seeds "
        "(Student’s t). Next to them Wilson’s 95 % over the completions, which does not show how "
        "another seed would differ: completions of one run are not independent. Blue is within "
        f"{percent(SHARES[0])}, or {100 * LENGTHS[0]:.0f} % of the length; the redder, the "
        "further beyond."
    )
    shown = _part("What each attack reached", remark, found, reached, attacked=True)
    if not any(scenario.guarded for scenario in found):
        return shown
    remark = (
        "Honest completions with the right answer that were rejected, over whole runs, "
        f"with Wilson 95 % intervals. Blue is at most {percent(REJECTED[0])}, pale "
        f"yellow at most {percent(REJECTED[1])}."
    )
    shown += _part("What it cost honest work", remark, found, right_rejected)
    remark = (
        "Poisoned completions that were accepted, over whole runs. Abstentions are neither; they "
        "are listed as well if there were any. Once a ledger has excluded a node, nothing from it "
        "is accepted, whatever it sends; in those cases the figure is not a rate of detection."
    )
    return shown + _part("What passed", remark, found, accepted)


def _whole_tables(scenario: Scenario) -> str:
    """Return the tables of a single attack."""
    remark = (
        f"“At the end” is the last {WINDOW} iterations. 95 % intervals: Student’s t over the "
        "seeds, which are independent; for counts of completions Wilson’s, which do not show how "
        "another seed would differ, since completions of one run are not independent. Differences "
        "are paired by seed: equal seeds see the same problems. A cost is settled if its "
        f"interval lies wholly within or wholly beyond {BOUND}."
    )
    outcome = listing(OUTCOME, [scenario], guarded=False).html()
    shown = f"<h2>In numbers</h2>{note(remark)}{outcome}"
    if scenario.guarded:
        rejections = listing(REJECTIONS, [scenario], guarded=True).html()
        shown += f"<h2>What the guard rejected</h2>{rejections}"
    return shown


def _honest_work(found: Sequence[Scenario]) -> str:
    """Return the table of honest reward and accuracy for several attacks."""
    remark = (
        "Honest reward at the end against the attack-free run, in % of it: mean over the "
        "seeds with its 95 % interval over them, and whether that settles the cost to "
        f"{BOUND}; below it held-out accuracy against the attack-free run, in "
        f"points. Blue loses at most {percent(LOSSES[0])}."
    )
    return _part("What is left of honest work", remark, found, loss, attacked=True)


def _time_taken(found: Sequence[Scenario]) -> str:
    if not any(s.guard_cost or s.excluded_in for one in found for s in one.guarded):
        return ""
    remark = (
        "Seconds of the guard per iteration. Honest nodes with the same weights are "
        "computed once in one process, and so is their guard; the share is of the whole "
        "iteration, including the samples of all nodes and the attacker’s own work. A "
        "node that samples only its part spends a larger share of its time."
    )
    return _part("What guarding took", remark, found, seconds)


def _examples(found: Sequence[Scenario]) -> str:
    """Show the completions that a person should read from the guards under test, kind by kind."""
    deciding = under_test(series.defence for one in found for series in one.guarded)
    guarded = [(one.name, s) for one in found for s in one.guarded if s.defence in deciding]
    shown = [part for kind in _EXAMPLES for name, s in guarded for part in _of(kind, s, name)]
    if not shown:
        return ""
    remark = (
        "Mistakes first, if the runs made and kept any: poison that passed, right answers "
        "that were rejected. The counts are in the tables above."
    )
    left = len(shown) - _MOST_EXAMPLES
    more = note(f"{left} more are in the results file.") if left > 0 else ""
    kept = "".join(shown[:_MOST_EXAMPLES])
    return f"<h2>Completions to look at</h2>{note(remark)}{kept}{more}"


def _of(kind: str, series: Series, name: str) -> list[str]:
    """Show a series' last examples: what passes at the end is more telling than at the start."""
    most, title = _EXAMPLES[kind]
    examples = [one for run in series.runs for one in run.examples if one.kind == kind]
    guard = "the guard" if series.label == "guarded" else series.label
    return [shown_example(one, f"{title.format(guard=guard)}: {name}") for one in examples[-most:]]
