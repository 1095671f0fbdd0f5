"""Intervals: known values, and properties that any interval must have."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_guard.evals.stats import student_t, wilson


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


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=40), st.floats(0.1, 0.9))
def test_student_t_holds_the_mean_and_widens(values: list[float], level: float) -> None:
    narrow, wide = student_t(values, level), student_t(values, level + 0.09)
    assert wide.low <= narrow.low <= narrow.value <= narrow.high <= wide.high


def test_student_t_is_the_textbooks() -> None:
    """Of 1 to 5: mean 3, standard deviation sqrt(2.5), t(0.975; 4) = 2.7764."""
    interval = student_t([1, 2, 3, 4, 5])
    assert interval.value == 3
    assert interval.high - 3 == pytest.approx(2.7764 * math.sqrt(2.5 / 5), abs=1e-4)
    assert interval.high - 3 == pytest.approx(3 - interval.low)
    assert student_t([0.3, 0.3, 0.3]).low == student_t([0.3, 0.3, 0.3]).high == 0.3


@pytest.mark.parametrize("values", [[], [1.0], [1.0, float("nan")], [1.0, float("inf")]])
def test_student_t_refuses_what_has_no_spread(values: list[float]) -> None:
    with pytest.raises(ValueError, match="values"):
        student_t(values)
