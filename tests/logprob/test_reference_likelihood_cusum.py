"""CUSUM: value and span against brute force, and invariances."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_guard.logprob.reference.null import cusum

# Quarters add up without rounding, so that brute force must agree to the last bit.
EXACT = st.lists(st.integers(-40, 40).map(lambda i: i / 4), max_size=24)
ROUNDED = st.lists(st.floats(-50, 50), min_size=1, max_size=60)


def brute_force(scores):
    """(sum, start, end) of the largest run; the earliest to end and, among those, the shortest."""
    best = (0.0, 0, 0)
    for end in range(1, len(scores) + 1):
        for start in range(end - 1, -1, -1):
            if sum(scores[start:end]) > best[0]:
                best = (sum(scores[start:end]), start, end)
    return best


@given(EXACT)
def test_value_and_span_match_the_largest_run(scores):
    found = cusum(np.array(scores))
    assert (found.value, found.start, found.end) == brute_force(scores)


@given(ROUNDED)
def test_span_sums_to_the_value_and_no_run_to_more(scores):
    x = np.array(scores)
    found = cusum(x)
    assert found.value == pytest.approx(x[found.start : found.end].sum(), abs=1e-9)
    assert found.value >= brute_force(scores)[0] - 1e-9


@given(EXACT, st.integers(1, 8))
def test_usual_text_around_only_shifts_the_span(scores, many):
    x, usual = np.array(scores), np.full(many, -1.0)
    alone = cusum(x)
    shifted = cusum(np.concatenate([usual, x, usual]))
    assert shifted.value == alone.value
    if alone.value:
        assert (shifted.start, shifted.end) == (alone.start + many, alone.end + many)


@given(EXACT)
def test_reversing_keeps_the_value(scores):
    assert cusum(np.array(scores[::-1])).value == cusum(np.array(scores)).value


def test_no_or_low_scores_give_an_empty_run():
    for scores in ([], [-1.0], [0.0, 0.0], [-2.0, -3.0]):
        found = cusum(np.array(scores))
        assert (found.value, found.end - found.start) == (0.0, 0)


@pytest.mark.parametrize("bad", [[np.nan], [np.inf, 1.0], [[1.0]]])
def test_invalid_rows_are_refused(bad):
    with pytest.raises(ValueError, match="finite"):
        cusum(np.array(bad))
