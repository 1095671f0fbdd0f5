"""What the runs of a results file say: curves, rates with their counts, and one plain sentence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from grpo_guard.evals.results import Counts, Results, Run
from grpo_guard.evals.stats import Interval, bootstrap_mean, wilson

WINDOW = 10
"""Iterations that "at the end" means; a single one is too noisy to quote."""

NONE = "none"


def percent(value: float) -> str:
    """``97.3 %``; more decimals where one would round a small difference to 0 or 100."""
    share = 100 * value
    if share in (0, 100):
        return f"{share:.0f} %"
    if share < 0.01:
        return "<0.01 %"
    if share > 99.99:
        return ">99.99 %"
    return f"{share:.2f} %" if share < 1 or share > 99.9 else f"{share:.1f} %"


@dataclass(frozen=True, slots=True)
class Rate:
    """A count out of a total, with its Wilson 95 % interval."""

    count: int
    total: int

    @property
    def value(self) -> float | None:
        return self.count / self.total if self.total else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval, or None where nothing was counted."""
        if not self.total:
            return None
        interval = wilson(self.count, self.total)
        return interval.low, interval.high

    @property
    def value_text(self) -> str:
        """``0.03 %``, or a dash where nothing was counted."""
        return "–" if self.value is None else percent(self.value)

    @property
    def interval_text(self) -> str:
        """``0.01–0.10 %``."""
        if self.interval is None:
            return "–"
        low, high = self.interval
        return f"{percent(low).removesuffix(' %')}–{percent(high)}"

    @property
    def count_text(self) -> str:
        """``3 / 8,640``."""
        return f"{self.count:,} / {self.total:,}"

    def __str__(self) -> str:
        """``3 / 8,640 = 0.03 % (0.01–0.10 %)``."""
        if not self.total:
            return self.count_text
        return f"{self.count_text} = {self.value_text} ({self.interval_text})"


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over iterations with its bootstrap 95 % interval.

    Rewards of one iteration hang together, since its completions share a few problems; an interval
    that counted completions would be several times too narrow.
    """

    value: float
    low: float
    high: float
    total: int
    difference: bool = False

    @classmethod
    def of(cls, values: Sequence[float], *, difference: bool = False) -> Mean | None:
        """The mean of one value per iteration; None without values."""
        if not values:
            return None
        found = _bootstrap(tuple(values))
        return cls(found.value, found.low, found.high, len(values), difference)

    @property
    def interval(self) -> tuple[float, float]:
        """Both ends, as `Rate` has them."""
        return self.low, self.high

    @property
    def value_text(self) -> str:
        """``0.718``, a difference with its sign."""
        return self._show(self.value)

    @property
    def interval_text(self) -> str:
        """``0.694–0.741``."""
        between = " to " if self.difference else "–"
        return f"{self._show(self.low)}{between}{self._show(self.high)}"

    @property
    def count_text(self) -> str:
        """``10 iterations``."""
        return f"{self.total:,} iteration{'' if self.total == 1 else 's'}"

    def __str__(self) -> str:
        """``0.718 (0.694–0.741)``."""
        return f"{self.value_text} ({self.interval_text})"

    def _show(self, value: float) -> str:
        return f"{value:+.3f}".replace("-", "−") if self.difference else f"{value:.3f}"


@dataclass(frozen=True, slots=True)
class Series:
    """The runs of one (attack, defence) in one setting, seeds pooled."""

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
    def asr(self) -> list[float]:
        """Mean over the seeds, iteration by iteration."""
        return _mean([run.asr for run in self.runs])

    @property
    def honest_reward(self) -> list[float]:
        """Mean over the seeds, iteration by iteration."""
        return _mean([run.honest_reward for run in self.runs])

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

    def rejected(self, kind: str) -> Rate | None:
        """How many of ``kind`` (a field of `Counts`) were rejected, of how many submitted."""
        if any(run.submitted is None for run in self.runs):
            return None
        count = sum(getattr(run.rejected, kind) for run in self.runs)
        return Rate(count, sum(getattr(run.submitted, kind) for run in self.runs))

    @property
    def abstained(self) -> Rate | None:
        """Abstentions of all completions, honest or not."""
        if any(run.submitted is None or run.abstained is None for run in self.runs):
            return None
        total = sum(_all(run.submitted) for run in self.runs if run.submitted)
        return Rate(sum(run.abstained or 0 for run in self.runs), total)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One attack in one setting: the attack-free, undefended and guarded series beside it."""

    attack: str
    setting: str
    models: str
    free: Series | None
    undefended: Series | None
    guarded: tuple[Series, ...]

    @property
    def attacked(self) -> list[Series]:
        return [*([self.undefended] if self.undefended else []), *self.guarded]

    @property
    def series(self) -> list[Series]:
        return [*([self.free] if self.free else []), *self.attacked]


def scenarios(results: Results) -> list[Scenario]:
    """Group the runs by attack and setting, in the order in which they first appear."""
    pools: dict[tuple[str, str, str, str], list[Run]] = defaultdict(list)
    for run in results.runs:
        pools[run.attack, run.setting, run.models, run.defence].append(run)
    keys = dict.fromkeys(key[:3] for key in pools)
    attacks = [key for key in keys if key[0] != NONE] or list(keys)
    found = []
    for attack, setting, models in attacks:
        defences = [key[3] for key in pools if key[:3] == (attack, setting, models)]
        guarded = [name for name in defences if name != NONE]
        series = {
            name: Series(
                "undefended" if name == NONE else "guarded" if len(guarded) == 1 else name,
                tuple(pools[attack, setting, models, name]),
            )
            for name in defences
        }
        free_runs = pools.get((NONE, setting, models, NONE))
        free = Series("attack-free", tuple(free_runs)) if free_runs else None
        undefended = series.get(NONE) if attack != NONE else None
        rest = tuple(series[name] for name in guarded)
        found.append(Scenario(attack, setting, models, free, undefended, rest))
    return found


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


@lru_cache(maxsize=256)
def _bootstrap(values: tuple[float, ...]) -> Interval:
    """Remembered, since sentence, table and summary ask for the same figures."""
    return bootstrap_mean(values, resamples=2000)


def _mean(curves: Sequence[Sequence[float]]) -> list[float]:
    return [sum(values) / len(values) for values in zip(*curves, strict=False)]


def _all(counts: Counts) -> int:
    return counts.honest + counts.poisoned
