"""Figures with their counts and intervals, and how they are written out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean, stdev

from grpo_guard.evals.stats import Interval, bootstrap_mean, wilson


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
        """The share, or None where nothing was counted."""
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
class OverSeeds:
    """One value per seed: their mean, with a 95 % interval (Student's t) from three seeds on.

    Of two seeds the two values themselves are the ends, since t would be 12.7; of one there are
    none.
    """

    value: float
    low: float | None
    high: float | None
    seeds: int

    @classmethod
    def of(cls, values: Sequence[float], within: tuple[float, float] | None = None) -> OverSeeds:
        """The mean of at least one value; ``within`` cuts the interval to what is possible."""
        mean, count = fmean(values), len(values)
        if count == 1:
            return cls(mean, None, None, 1)
        low, high = min(values), max(values)
        if count > 2:
            half = _t95(count - 1) * stdev(values) / math.sqrt(count)
            low, high = mean - half, mean + half
        if within is not None:
            low, high = max(low, within[0]), min(high, within[1])
        return cls(mean, min(low, mean), max(high, mean), count)

    @property
    def seeds_text(self) -> str:
        """``5 seeds``."""
        return f"{self.seeds} seed{'' if self.seeds == 1 else 's'}"


def over_seeds(
    curves: Sequence[Sequence[float]], within: tuple[float, float] | None = None
) -> list[OverSeeds]:
    """Iteration by iteration, as far as all curves go."""
    return [OverSeeds.of(values, within) for values in zip(*curves, strict=False)]


@lru_cache
def _t95(degrees: int) -> float:
    """Student's t, two-sided 95 %."""
    from scipy.stats import t

    return float(t.ppf(0.975, degrees))


@lru_cache(maxsize=4096)
def _bootstrap(values: tuple[float, ...]) -> Interval:
    """Remembered, since sentence, table and summary ask for the same figures."""
    return bootstrap_mean(values, resamples=2000)
