"""Series of runs from a results file that differ only in their seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from grpo_guard.evals.results import Run
from grpo_guard.evals.roles import COIN, NONE
from grpo_guard.evals.stats import OverSeeds, Rate

WINDOW = 10
"""Number of iterations that count as "the end"; a single one is too noisy to quote."""

SHARE = (0.0, 1.0)
POSITIVE = (0.0, float("inf"))
END = slice(-WINDOW, None)


class Conditions(NamedTuple):
    """What runs must have in common, other than attack and defence, to be pooled over seeds."""

    setting: str
    models: str
    task: str
    policy: str
    iterations: int


def conditions(run: Run) -> Conditions:
    """Return the conditions of a run."""
    return Conditions(run.setting, run.models, run.task, run.policy, len(run.honest_reward))


@dataclass(frozen=True, slots=True)
class Series:
    """The runs of an (attack, defence) pair under the same conditions, one per seed."""

    label: str
    runs: tuple[Run, ...]

    @property
    def attack(self) -> str:
        """Name of the attack."""
        return self.runs[0].attack

    @property
    def defence(self) -> str:
        """Name of the defence."""
        return self.runs[0].defence

    @property
    def guarded(self) -> bool:
        """Whether a guard judges the completions; a public coin alone does not."""
        return self.defence not in (NONE, COIN)

    @property
    def seeds(self) -> int:
        """Number of distinct seeds."""
        return len({run.seed for run in self.runs})

    @property
    def asr(self) -> list[float]:
        """Attack success in each iteration, averaged over the seeds."""
        return [point.value for point in self.asr_band]

    @property
    def asr_band(self) -> list[OverSeeds]:
        """Attack success in each iteration, with its interval over the seeds."""
        return _band([run.asr for run in self.runs], SHARE)

    @property
    def honest_reward(self) -> list[float]:
        """Honest reward in each iteration, averaged over the seeds."""
        curves = [run.honest_reward for run in self.runs]
        return [sum(values) / len(values) for values in zip(*curves, strict=False)]

    @property
    def length_band(self) -> list[OverSeeds]:
        """Mean length in tokens in each iteration, over the seeds; empty if unknown."""
        return _band([run.mean_tokens for run in self.runs], POSITIVE)

    def asr_in(self, rounds: slice = END) -> OverSeeds | None:
        """Mean attack success in some rounds, by default the last `WINDOW`, over the seeds."""
        if any(not run.asr[rounds] for run in self.runs):
            return None
        return OverSeeds.of([fmean(run.asr[rounds]) for run in self.runs], SHARE)

    def asr_counted(self, rounds: slice = END) -> Rate | None:
        """Share of completions that show the attack in these rounds; None if not countable."""
        count = total = 0
        for run in self.runs:
            some = run.asr[rounds]
            if run.submitted is None or not some or min(some) < 0 or max(some) > 1:
                return None
            each = run.asr_of or run.submitted.honest // len(run.asr)
            count += sum(round(value * each) for value in some)
            total += each * len(some)
        return Rate(count, total)

    @property
    def reward_end(self) -> OverSeeds | None:
        """Mean honest reward in the last `WINDOW` iterations, over the seeds."""
        known = [_end(run.honest_reward) for run in self.runs if run.honest_reward]
        return OverSeeds.of(known) if known else None

    def reward_cost(self, other: Series | None) -> OverSeeds | None:
        """Final honest reward minus that of ``other``, as a share of the mean of ``other``.

        Paired by seed, because equal seeds see the same problems; None without a pair.
        """
        gaps, usual = self.reward_gaps(other), other.reward_end if other else None
        if not gaps or usual is None or usual.value <= 0:
            return None
        return OverSeeds.of([gap / usual.value for gap in gaps])

    def reward_gaps(self, other: Series | None) -> list[float]:
        """Final honest reward minus that of ``other``, for each seed found in both series."""
        runs = other.runs if other else ()
        theirs = {run.seed: run.honest_reward for run in runs if run.honest_reward}
        return [
            _end(run.honest_reward) - _end(theirs[run.seed])
            for run in self.runs
            if run.honest_reward and run.seed in theirs
        ]

    def length_ratios(self, other: Series | None) -> list[list[float]]:
        """Ratios of mean length to that of ``other``: for each seed, a list by iteration.

        Both lengths are means over the last `WINDOW` iterations, because single iterations are too
        noisy; the first ratio is for the first full window. Seeds without a pair are left out.
        """
        theirs = {run.seed: run.mean_tokens for run in (other.runs if other else ())}
        found = []
        for run in self.runs:
            ours, yours = run.mean_tokens, theirs.get(run.seed, [])
            if not ours or len(ours) != len(yours) or min(ours) < 0 or min(yours) <= 0:
                continue
            ends = range(min(WINDOW, len(ours)), len(ours) + 1)
            found.append([_end(ours[:end]) / _end(yours[:end]) for end in ends])
        return found

    def length_ratio_end(self, other: Series | None) -> OverSeeds | None:
        """Final ratio of mean length to that of ``other``, over the seeds; None without a pair."""
        ratios = self.length_ratios(other)
        return OverSeeds.of([values[-1] for values in ratios], POSITIVE) if ratios else None

    def rejected(self, kind: str) -> Rate | None:
        """Share of submitted completions of a ``kind`` (a field of `Counts`) that were rejected."""
        if any(run.submitted is None for run in self.runs):
            return None
        count = sum(getattr(run.rejected, kind) for run in self.runs)
        return _rate(count, sum(getattr(run.submitted, kind) for run in self.runs))

    @property
    def accepted_poison(self) -> Rate | None:
        """Share of poisoned completions that a guard neither rejected nor abstained on."""
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
        """Share of abstentions among all completions, honest or not."""
        count = total = 0
        for run in self.runs:
            if run.submitted is None or run.abstained is None:
                return None
            count += run.abstained
            total += run.submitted.honest + run.submitted.poisoned + run.submitted.cover
        return _rate(count, total)

    @property
    def held_out(self) -> Rate | None:
        """Share of correct answers to held-out problems, which no run trains on."""
        known = [run.held_out for run in self.runs if run.held_out is not None]
        if len(known) < len(self.runs):
            return None
        return _rate(sum(one.correct for one in known), sum(one.total for one in known))

    @property
    def guard_cost(self) -> tuple[float, float] | None:
        """The guard's seconds per iteration, and its share of the run's time; None if not timed."""
        timed = [(run.guard_seconds, run.seconds) for run in self.runs]
        guard = sum(mine or 0.0 for mine, _ in timed)
        whole = sum(all_of_it or 0.0 for _, all_of_it in timed)
        rounds = sum(len(run.honest_reward) for run in self.runs)
        if not rounds or not 0 <= guard <= whole or not whole:
            return None
        return guard / rounds, guard / whole

    @property
    def excluded_in(self) -> list[int]:
        """The iteration of the first exclusion in each run where a node was excluded."""
        return sorted(min(run.excluded.values()) for run in self.runs if run.excluded)


def _band(curves: Sequence[Sequence[float]], within: tuple[float, float]) -> list[OverSeeds]:
    """Pool the curves iteration by iteration, up to the end of the shortest."""
    return [OverSeeds.of(values, within) for values in zip(*curves, strict=False)]


def _end(values: Sequence[float]) -> float:
    return fmean(values[-WINDOW:])


def _rate(count: int, total: int) -> Rate | None:
    """Return the rate, or None if a file's counts contradict each other."""
    return Rate(count, total) if 0 <= count <= total else None
