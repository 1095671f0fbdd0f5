"""Rates and means with 95 % intervals, the area under a ROC curve, and formatting of figures.

A rate or a mean is never reported without an interval. The computations are done by scipy, which
the extra ``evals`` installs. It is imported on the first call, because importing it takes a second
and much code only names a figure.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean, stdev
from typing import Any

import numpy as np
from numpy.typing import ArrayLike


def auroc(low: ArrayLike, high: ArrayLike) -> float:
    """Return the area under the ROC curve.

    This is the probability that a random value of ``high`` exceeds one of ``low``; ties count half.

    Args:
        low: Values expected to be lower, shape [m], m >= 1.
        high: Values expected to be higher, shape [n], n >= 1.
    """
    from scipy.stats import mannwhitneyu

    pairs = np.size(low) * np.size(high)
    # The exact method would only take longer, because the p-value is not used.
    return float(mannwhitneyu(high, low, method="asymptotic").statistic) / pairs


@dataclass(frozen=True, slots=True)
class Rate:
    """A count out of a total, with its 95 % Wilson score interval.

    Wilson 1927, without continuity correction: unlike the textbook interval, it does not collapse
    to a point if the count is 0 or equals the total, which is typical of false-positive rates. It
    reflects the variation between completions, not between seeds.
    """

    count: int
    total: int

    @property
    def value(self) -> float | None:
        """The share, or None if nothing was counted."""
        return self.count / self.total if self.total else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval, or None if nothing was counted.

        Raises:
            ValueError: the count is below 0 or above the total.
        """
        if not self.total:
            return None
        from scipy.stats import binomtest

        found = binomtest(self.count, self.total).proportion_ci(method="wilson")
        return float(found.low), float(found.high)

    def row(self) -> dict[str, Any]:
        """Return mean, interval, n and the counted unit, in the format of results.json."""
        low, high = self.interval or (None, None)
        return {
            "mean": self.value, "low": low, "high": high, "n": self.total, "over": "completions",
        }  # fmt: skip

    @property
    def value_text(self) -> str:
        """The share as text, such as ``0.03 %``, or a dash if nothing was counted."""
        return "–" if self.value is None else percent(self.value)

    @property
    def interval_text(self) -> str:
        """The interval as text, such as ``0.01–0.10 %``, or a dash if nothing was counted."""
        if self.interval is None:
            return "–"
        low, high = self.interval
        return f"{percent(low).removesuffix(' %')}–{percent(high)}"

    @property
    def count_text(self) -> str:
        """Count and total as text, such as ``3 / 8,640``."""
        return f"{self.count:,} / {self.total:,}"

    def __str__(self) -> str:
        """Format as ``3 / 8,640 = 0.03 % (0.01–0.10 %)``."""
        if not self.total:
            return self.count_text
        return f"{self.count_text} = {self.value_text} ({self.interval_text})"


@dataclass(frozen=True, slots=True)
class OverSeeds:
    """Mean of one value per seed, with a 95 % interval (Student's t) if there are two or more.

    Runs with different seeds are independent; the completions and iterations of a single run are
    not, so counting those instead would make the intervals several times too narrow.
    """

    value: float
    low: float | None
    high: float | None
    seeds: int

    @classmethod
    def of(cls, values: Sequence[float], within: tuple[float, float] | None = None) -> "OverSeeds":
        """Average one or more values; ``within`` clips the interval to the possible range."""
        mean, count = fmean(values), len(values)
        if count == 1:
            return cls(mean, None, None, 1)
        low, high = _ends(tuple(values))
        if within is not None:
            low, high = max(low, within[0]), min(high, within[1])
        return cls(mean, min(low, mean), max(high, mean), count)

    def row(self) -> dict[str, Any]:
        """Return mean, interval, n and the counted unit, in the format of results.json."""
        return {
            "mean": self.value, "low": self.low, "high": self.high, "n": self.seeds,
            "over": "seeds",
        }  # fmt: skip

    def details(self, show: Callable[[float], str]) -> tuple[str, ...]:
        """Return the interval and the number of seeds as text; equal values have no interval."""
        if self.low is None or self.high is None:
            return ("1 seed",)
        if self.low == self.high:
            return (f"{self.seeds} equal seeds",)
        low, high = show(self.low), show(self.high)
        between = " to " if low[0] in "+−" else "–"
        return low.partition(" ")[0] + between + high, f"{self.seeds} seeds"

    def text(self, show: Callable[[float], str]) -> str:
        """Format as ``0.718 (0.694–0.741, 5 seeds)``."""
        return f"{show(self.value)} ({', '.join(self.details(show))})"


@lru_cache(maxsize=4096)
def _ends(values: tuple[float, ...]) -> tuple[float, float]:
    """Return the ends of the interval over at least two values; equal ones give width 0.

    Cached, because sentences, tables and summary use the same figures.
    """
    from scipy.stats import t

    mean, count = fmean(values), len(values)
    half = float(t.ppf(0.975, count - 1)) * stdev(values) / math.sqrt(count)
    return mean - half, mean + half


def percent(value: float) -> str:
    """Format a share as ``97.3 %``, with more decimals close to 0 and 100 %."""
    share = 100 * value
    if share in (0, 100):
        return f"{share:.0f} %"
    if share < 0.01:
        return "<0.01 %"
    if share > 99.99:
        return ">99.99 %"
    return f"{share:.2f} %" if share < 1 or share > 99.9 else f"{share:.1f} %"


def percent_beyond(value: float, limit: float) -> str:
    """Format as `percent` does, with enough decimals to differ visibly from ``limit``."""
    if value == limit or percent(value) != percent(limit):
        return percent(value)
    for decimals in range(2, 8):
        shown = f"{100 * value:.{decimals}f} %"
        if shown != f"{100 * limit:.{decimals}f} %":
            return shown
    return percent(value)


def signed_percent(value: float, decimals: int = 1) -> str:
    """Format a share with its sign, as ``−2.0 %`` or ``+0.0 %``."""
    return f"{round(100 * value, decimals) + 0.0:+.{decimals}f} %".replace("-", "−")


def three_digits(value: float) -> str:
    """Format with three decimals, as ``0.718``."""
    return f"{value:.3f}".replace("-", "−")
