"""Intervals: known values, and properties that any interval must have."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_guard.evals.stats import OverSeeds, Rate


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
    assert Rate(hits, total).interval == pytest.approx((low, high), abs=5e-5)
    assert Rate(hits, total).value == hits / total


@given(st.integers(1, 10**6), st.data())
def test_wilson_contains_the_rate_and_is_symmetric(total: int, data: st.DataObject) -> None:
    hits = data.draw(st.integers(0, total))
    low, high = Rate(hits, total).interval or (math.nan, math.nan)
    mirrored = Rate(total - hits, total).interval or (math.nan, math.nan)
    assert 0 <= low <= hits / total <= high <= 1
    assert low < high
    assert low == pytest.approx(1 - mirrored[1], abs=1e-12)


def test_wilson_without_observations_is_0_to_1() -> None:
    assert Rate(0, 0).interval is None
    assert Rate(0, 0).value is None


@pytest.mark.parametrize(("hits", "total"), [(-1, 5), (6, 5), (0, -1)])
def test_wilson_refuses_impossible_counts(hits: int, total: int) -> None:
    with pytest.raises(ValueError, match="must"):
        _ = Rate(hits, total).interval


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=40))
def test_student_t_contains_the_mean(values: list[float]) -> None:
    found = OverSeeds.of(values)
    assert (found.low or 0.0) <= found.value <= (found.high or 0.0) or found.low == found.high


def test_student_t_matches_the_textbook() -> None:
    """For 1 to 5: mean 3, standard deviation sqrt(2.5), t(0.975; 4) = 2.7764."""
    found = OverSeeds.of([1, 2, 3, 4, 5])
    assert found.low is not None
    assert found.high is not None
    assert found.value == 3
    assert found.high - 3 == pytest.approx(2.7764 * math.sqrt(2.5 / 5), abs=1e-4)
    assert found.high - 3 == pytest.approx(3 - found.low)
    equal = OverSeeds.of([0.3, 0.3, 0.3])
    assert equal.low == equal.high == 0.3
