"""Tables of training runs: how well attacks succeed, and what each defence rejects and costs."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Final, TypeAlias

from grpo_guard.evals.report.scenarios import Scenario, scenarios
from grpo_guard.evals.report.series import Series
from grpo_guard.evals.results import load_results
from grpo_guard.evals.stats import Rate, signed_percent
from grpo_guard.evals.studies.pages.cells import NOTHING, RESULTS, count, table

Pair: TypeAlias = tuple[Scenario, Series]
Column: TypeAlias = Callable[[Scenario, Series], str]


@cache
def _scenarios(name: str) -> list[Scenario]:
    """Load the scenarios of the file ``docs/results/swarm-NAME.json``."""
    return scenarios(load_results(RESULTS / f"swarm-{name}.json"))


def find(file: str, attack: str, defence: str) -> Pair | None:
    """Return the runs of an attack under a defence; None if they are not in the file."""
    for scenario in _scenarios(file):
        for series in scenario.attacked:
            if (scenario.attack, series.defence) == (attack, defence):
                return scenario, series
    return None


def _rate(rate: Rate | None) -> str:
    return count(rate.count, rate.total) if rate else NOTHING


def _short(share: float) -> str:
    """Format a share in %, with two significant digits or, from 9.5 % on, in whole percent."""
    return f"{round(100 * share)}" if share > 0.095 else f"{100 * share:.2g}"


def success(_: Scenario, series: Series) -> str:
    """Attack success in the last ten rounds, as a share of completions."""
    return _rate(series.asr_counted())


def over_seeds(_: Scenario, series: Series) -> str:
    """Attack success in the last ten rounds: mean over seeds, lowest and highest seed."""
    found = [100 * sum(run.asr[-10:]) / 10 for run in series.runs]
    return f"{sum(found) / len(found):.1f} % ({min(found):.1f} to {max(found):.1f})"


def shares(_: Scenario, series: Series) -> str:
    """Attack success in %: mean of the last ten rounds, with the highest round in brackets."""
    ends = series.asr_in()
    return f"{_short(ends.value)} ({_short(max(series.asr))})" if ends else NOTHING


def rejected(kind: str) -> Column:
    """Return a column with the rejections for one kind of completion."""
    return lambda _, series: _rate(series.rejected(kind)) if series.guarded else NOTHING


def reward(scenario: Scenario, series: Series) -> str:
    """Final honest reward, with that of the attack-free runs in brackets."""
    ours, free = series.reward_end, scenario.beside(series)
    usual = free.reward_end if free else None
    return f"{ours.value:.2f} ({usual.value:.2f})" if ours and usual else NOTHING


def cost(scenario: Scenario, series: Series) -> str:
    """Final honest reward compared with the attack-free runs, with an interval over the seeds."""
    found = series.reward_cost(scenario.beside(series))
    return found.text(signed_percent).replace(", ", "; ") if found else NOTHING


COLUMNS: Final[dict[str, Column]] = {
    "success, last 10 rounds": success,
    "success, mean over seeds (least to most)": over_seeds,
    "success, % (highest round)": shares,
    "poison rejected": rejected("poisoned"),
    "honest rejected": rejected("honest"),
    "honest right rejected": rejected("honest_correct"),
    "honest reward (attack-free)": reward,
    "honest reward compared with attack-free": cost,
}


def runs(plan: Sequence[tuple[str, str, str]], columns: Sequence[str]) -> str:
    """Make a table from (file, attacks, defences) entries, with one row per attack and defence.

    Attacks and defences are names separated by commas; missing runs are skipped.
    """
    rows = []
    for file, attacks, defences in plan:
        for attack in attacks.split(","):
            for defence in defences.split(","):
                if found := find(file, attack, defence):
                    cells = [COLUMNS[name](*found) for name in columns]
                    name = "undefended" if defence == "none" else f"`{defence}`"
                    rows.append([f"`{attack}`, {name}", *cells])
    return table(["attack, defence", *columns], rows)


def side_by_side(
    first: str,
    rows: Sequence[Sequence[tuple[str, str, str]]],
    header: Sequence[str],
    names: Sequence[str],
) -> str:
    """Make a table with one run, (file, attack, defence), per cell.

    ``names`` are the first cells of the rows. A header is ``title: column``, where the column's
    name, a key of `COLUMNS`, selects the figure to show.
    """
    titles = [title.partition(": ") for title in header]
    body = []
    for name, cells in zip(names, rows, strict=True):
        found = [find(*cell) for cell in cells]
        shown = [
            COLUMNS[column](*one) if one else NOTHING
            for one, (_, _, column) in zip(found, titles, strict=True)
        ]
        body.append([name, *shown])
    return table([first, *(title for title, _, _ in titles)], body)
