"""Intervals: known values, and properties that any interval must have."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_guard.evals.stats import bootstrap_mean, wilson


@pytest.mark.parametrize(
    ("hits", "total", "low", "high"),
    [
        # Newcombe 1998 (Statistics in Medicine 17:857), table I, method 3.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_matches_published_values(hits: int, total: int, low: float, high: float) -> None:
    interval = wilson(hits, total)
    assert interval.low == pytest.approx(low, abs=5e-5)
    assert interval.high == pytest.approx(high, abs=5e-5)
    assert interval.value == hits / total


@given(st.integers(1, 10**6), st.data(), st.floats(0.01, 0.999))
def test_wilson_holds_the_rate_and_mirrors(total: int, data: st.DataObject, level: float) -> None:
    hits = data.draw(st.integers(0, total))
    interval, mirrored = wilson(hits, total, level), wilson(total - hits, total, level)
    assert 0 <= interval.low <= interval.value <= interval.high <= 1
    assert interval.low < interval.high
    assert interval.low == pytest.approx(1 - mirrored.high, abs=1e-12)
    # The bounds are the roots of (p - rate)^2 = z^2 p (1 - p) / n: check the interval's definition.
    wider = wilson(hits, total, min(0.9999, level + 0.0009))
    assert wider.low <= interval.low
    assert wider.high >= interval.high


def test_wilson_without_observations_says_nothing() -> None:
    interval = wilson(0, 0)
    assert math.isnan(interval.value)
    assert (interval.low, interval.high) == (0.0, 1.0)


@pytest.mark.parametrize(("hits", "total"), [(-1, 5), (6, 5), (0, -1)])
def test_wilson_refuses_impossible_counts(hits: int, total: int) -> None:
    with pytest.raises(ValueError, match="hits"):
        wilson(hits, total)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40), st.integers(0, 2**32))
def test_bootstrap_holds_the_mean_and_repeats(values: list[float], seed: int) -> None:
    first = bootstrap_mean(values, seed=seed, resamples=50)
    assert first == bootstrap_mean(values, seed=seed, resamples=50)
    assert min(values) - 1e-3 <= first.low <= first.value <= first.high <= max(values) + 1e-3


def test_bootstrap_of_a_normal_sample_is_near_the_textbook_interval() -> None:
    values = [math.sin(i * 12.9898) * 43758.5453 % 1 for i in range(400)]  # uniform on [0, 1)
    interval = bootstrap_mean(values, seed=1)
    half = 1.96 * math.sqrt(1 / 12 / 400)
    assert (interval.high - interval.low) / 2 == pytest.approx(half, rel=0.1)


@pytest.mark.parametrize("values", [[], [float("nan")], [1.0, float("inf")]])
def test_bootstrap_refuses_what_has_no_mean(values: list[float]) -> None:
    with pytest.raises(ValueError, match="values"):
        bootstrap_mean(values)
