"""What the runs of a results file say: series of runs that differ in their seed, side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

from grpo_guard.evals.figures import Mean, OverSeeds, Rate, over_seeds, percent
from grpo_guard.evals.results import Counts, Results, Run
from grpo_guard.evals.roles import NONE, ordered_attacks, ordered_defences

__all__ = [
    "NONE", "WINDOW", "Mean", "Rate", "Scenario", "Series", "percent", "scenarios", "summarise",
]  # fmt: skip

WINDOW = 10
"""Iterations that "at the end" means; a single one is too noisy to quote."""

SHARE = (0.0, 1.0)


class Conditions(NamedTuple):
    """What runs must have in common to be seeds of one another, attack and defence aside."""

    setting: str
    models: str
    task: str
    policy: str
    iterations: int


def conditions(run: Run) -> Conditions:
    """The conditions of a run."""
    return Conditions(run.setting, run.models, run.task, run.policy, len(run.honest_reward))


@dataclass(frozen=True, slots=True)
class Series:
    """The runs of one (attack, defence) under the same conditions: one per seed."""

    label: str
    runs: tuple[Run, ...]

    @property
    def attack(self) -> str:
        return self.runs[0].attack

    @property
    def defence(self) -> str:
        return self.runs[0].defence

    @property
    def guarded(self) -> bool:
        return self.defence != NONE

    @property
    def seeds(self) -> int:
        return len({run.seed for run in self.runs})

    @property
    def asr(self) -> list[float]:
        """Mean over the seeds, iteration by iteration."""
        return [point.value for point in self.asr_band]

    @property
    def asr_band(self) -> list[OverSeeds]:
        """Attack success, iteration by iteration, with its interval over the seeds."""
        return over_seeds([run.asr for run in self.runs], SHARE)

    @property
    def honest_reward(self) -> list[float]:
        """Mean over the seeds, iteration by iteration."""
        return _mean([run.honest_reward for run in self.runs])

    @property
    def length_band(self) -> list[OverSeeds]:
        """Mean length in tokens, iteration by iteration; empty where it is not known."""
        return over_seeds([run.mean_tokens for run in self.runs], (0.0, float("inf")))

    @property
    def asr_end(self) -> Rate | None:
        """Attack success over the last `WINDOW` iterations; None where it is not a share."""
        count = total = 0
        for run in self.runs:
            tail = run.asr[-WINDOW:]
            if run.submitted is None or not tail or min(tail) < 0 or max(tail) > 1:
                return None
            each = run.submitted.honest // len(run.asr)
            count += sum(round(value * each) for value in tail)
            total += each * len(tail)
        return Rate(count, total)

    @property
    def asr_end_by_seed(self) -> OverSeeds | None:
        """Attack success over the last `WINDOW` iterations, a value per seed."""
        if any(not run.asr for run in self.runs):
            return None
        return OverSeeds.of([_end(run.asr) for run in self.runs], SHARE)

    @property
    def reward_end(self) -> Mean | None:
        """Honest reward over the last `WINDOW` iterations."""
        return Mean.of([value for run in self.runs for value in run.honest_reward[-WINDOW:]])

    def reward_beside(self, other: Series) -> Mean | None:
        """Honest reward minus the other's over the last `WINDOW` iterations.

        Paired by seed and iteration, since equal seeds see the same problems; None where they
        cannot be paired.
        """
        theirs = {run.seed: run.honest_reward for run in other.runs}
        differences: list[float] = []
        for run in self.runs:
            if len(theirs.get(run.seed, ())) != len(run.honest_reward):
                return None
            pairs = zip(run.honest_reward[-WINDOW:], theirs[run.seed][-WINDOW:], strict=True)
            differences += [mine - yours for mine, yours in pairs]
        return Mean.of(differences, difference=True)

    def reward_gaps(self, other: Series) -> list[float]:
        """Honest reward at the end minus the other's, for each seed that both have."""
        theirs = {run.seed: run.honest_reward for run in other.runs if run.honest_reward}
        return [
            _end(run.honest_reward) - _end(theirs[run.seed])
            for run in self.runs
            if run.honest_reward and run.seed in theirs
        ]

    def length_ratios(self, other: Series) -> list[list[float]]:
        """Mean length by the other's, of the same seed: for each seed, after each iteration.

        Both are means of the last `WINDOW` iterations, since single ones are too noisy to compare;
        the first value stands after the first whole window. Seeds that cannot be paired are left
        out.
        """
        theirs = {run.seed: run.mean_tokens for run in other.runs}
        found = []
        for run in self.runs:
            ours, yours = run.mean_tokens, theirs.get(run.seed, [])
            if not ours or len(ours) != len(yours) or min(ours) < 0 or min(yours) <= 0:
                continue
            ends = range(min(WINDOW, len(ours)), len(ours) + 1)
            found.append([_end(ours[:end]) / _end(yours[:end]) for end in ends])
        return found

    def rejected(self, kind: str) -> Rate | None:
        """How many of ``kind`` (a field of `Counts`) were rejected, of how many submitted."""
        if any(run.submitted is None for run in self.runs):
            return None
        count = sum(getattr(run.rejected, kind) for run in self.runs)
        return _rate(count, sum(getattr(run.submitted, kind) for run in self.runs))

    @property
    def accepted_poison(self) -> Rate | None:
        """Poisoned completions that a guard accepted: neither rejected nor abstained on."""
        count = total = 0
        for run in self.runs:
            unsure = run.abstained_poisoned
            if run.submitted is None or (unsure is None and run.abstained):
                return None
            count += run.submitted.poisoned - run.rejected.poisoned - (unsure or 0)
            total += run.submitted.poisoned
        return _rate(count, total)

    @property
    def abstained(self) -> Rate | None:
        """Abstentions of all completions, honest or not."""
        if any(run.submitted is None or run.abstained is None for run in self.runs):
            return None
        total = sum(_all(run.submitted) for run in self.runs if run.submitted)
        return _rate(sum(run.abstained or 0 for run in self.runs), total)

    @property
    def held_out(self) -> Rate | None:
        """Right answers to problems that no run trains on."""
        known = [run.held_out for run in self.runs if run.held_out is not None]
        if len(known) < len(self.runs):
            return None
        return _rate(sum(one.correct for one in known), sum(one.total for one in known))

    @property
    def guard_cost(self) -> tuple[float, float] | None:
        """Seconds of guard per iteration, and their share of all; None where not timed."""
        timed = [(run.guard_seconds, run.seconds) for run in self.runs]
        guard = sum(mine or 0.0 for mine, _ in timed)
        whole = sum(all_of_it or 0.0 for _, all_of_it in timed)
        rounds = sum(len(run.honest_reward) for run in self.runs)
        if not rounds or not 0 <= guard <= whole or not whole:
            return None
        return guard / rounds, guard / whole

    @property
    def excluded_in(self) -> list[int]:
        """Of each run in which a node was excluded, the first iteration after which one was."""
        return sorted(min(run.excluded.values()) for run in self.runs if run.excluded)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One attack under one set of conditions: attack-free, undefended and guarded side by side."""

    attack: str
    where: Conditions
    free: Series | None
    undefended: Series | None
    guarded: tuple[Series, ...]

    @property
    def setting(self) -> str:
        return self.where.setting

    @property
    def models(self) -> str:
        return self.where.models

    @property
    def attacked(self) -> list[Series]:
        return [*([self.undefended] if self.undefended else []), *self.guarded]

    @property
    def series(self) -> list[Series]:
        return [*([self.free] if self.free else []), *self.attacked]


def scenarios(results: Results) -> list[Scenario]:
    """Group the runs by attack and conditions, in an order that does not depend on the file's."""
    pools: dict[tuple[str, Conditions, str], list[Run]] = defaultdict(list)
    for run in results.runs:
        pools[run.attack, conditions(run), run.defence].append(run)
    keys = dict.fromkeys(key[:2] for key in pools)
    # Attack-free runs stand beside every attack; guarded ones of them are a row of their own.
    guarded_free = {key[:2] for key in pools if key[0] == NONE and key[2] != NONE}
    attacks = [key for key in keys if key[0] != NONE or key in guarded_free] or list(keys)
    place = {name: at for at, name in enumerate(ordered_attacks(key[0] for key in keys))}
    found = []
    for attack, where in sorted(attacks, key=lambda key: (place[key[0]], key[1])):
        defences = ordered_defences(key[2] for key in pools if key[:2] == (attack, where))
        guarded = [name for name in defences if name != NONE]
        series = {
            name: Series(
                "undefended" if name == NONE else "guarded" if len(guarded) == 1 else name,
                tuple(sorted(pools[attack, where, name], key=lambda run: run.seed)),
            )
            for name in defences
        }
        free_runs = pools.get((NONE, where, NONE))
        free = Series("attack-free", tuple(free_runs)) if free_runs else None
        undefended = series.get(NONE) if attack != NONE else None
        rest = tuple(series[name] for name in guarded)
        found.append(Scenario(attack, where, free, undefended, rest))
    return found


def scenario_names(found: Sequence[Scenario]) -> list[str]:
    """A short name for each: the attack, and what tells its conditions from its other ones."""
    names = []
    for one in found:
        others = [other.where for other in found if other.attack == one.attack]
        parts = []
        for at, field in enumerate(Conditions._fields):
            if len({where[at] for where in others}) > 1:
                value = str(one.where[at]) or "?"
                parts.append(f"{value} iterations" if field == "iterations" else value)
        names.append(", ".join([one.attack if one.attack != NONE else "no attack", *parts]))
    return names


def summarise(results: Results) -> list[dict[str, Any]]:
    """The ``summary`` list: each headline figure with its interval and count."""
    rows: list[dict[str, Any]] = []
    seen: set[tuple[str, str, int]] = set()
    for scenario in scenarios(results):
        for series in scenario.series:
            if (series.attack, series.defence, id(series.runs[0])) in seen:
                continue  # the attack-free series stands beside every attack
            seen.add((series.attack, series.defence, id(series.runs[0])))
            for metric, figure in _headline(series, scenario.free).items():
                if figure is None:
                    continue
                low, high = figure.interval or (None, None)
                rows.append(
                    {"attack": series.attack, "defence": series.defence, "metric": metric,
                     "mean": figure.value, "low": low, "high": high, "n": figure.total}
                )  # fmt: skip
    return rows


def _headline(series: Series, free: Series | None) -> dict[str, Rate | Mean | None]:
    figures: dict[str, Rate | Mean | None] = {"honest_reward_end": series.reward_end}
    if free is not None and series is not free:
        figures["honest_reward_end_minus_attack_free"] = series.reward_beside(free)
    if series.attack != NONE:
        figures["asr_end"] = series.asr_end
    if series.guarded:
        for kind in Counts.model_fields:
            figures[f"rejected_{kind}"] = series.rejected(kind)
        figures["abstained"] = series.abstained
    return figures


def _mean(curves: Sequence[Sequence[float]]) -> list[float]:
    return [sum(values) / len(values) for values in zip(*curves, strict=False)]


def _all(counts: Counts) -> int:
    return counts.honest + counts.poisoned


def _end(values: Sequence[float]) -> float:
    return fmean(values[-WINDOW:])


def _rate(count: int, total: int) -> Rate | None:
    """None where the counts of a file contradict each other."""
    return Rate(count, total) if 0 <= count <= total else None
