"""Combined p-values are valid under any dependence between the tests."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_guard.core.p_values import (
    bonferroni,
    deciding_p_values,
    normalised_shares,
    p_text,
    ruger,
)
from grpo_guard.core.verdict import accept, reject

probabilities = st.floats(0, 1)


@given(st.lists(st.none() | probabilities, min_size=1, max_size=6), st.data())
def test_bonferroni_rejects_iff_a_member_is_within_its_share(values, data):
    weights = data.draw(
        st.lists(st.floats(0.01, 9), min_size=len(values), max_size=len(values)) | st.none()
    )
    shares = normalised_shares(weights, len(values), "shares")
    assert math.isclose(math.fsum(shares), 1)
    combined = bonferroni(values, shares)
    if combined is None:
        assert all(p is None for p in values)
        return
    for level in (1e-3, 0.05, 0.5, 0.99):
        pairs = [(p, s) for p, s in zip(values, shares, strict=True) if p is not None]
        assert (combined <= level) == any(p / s <= level for p, s in pairs)


@given(st.lists(probabilities, min_size=1, max_size=7), st.data())
def test_ruger_is_the_least_level_at_which_enough_tests_reject(values, data):
    rejects = data.draw(st.integers(1, len(values)))
    combined = ruger(values, rejects)
    at = combined * rejects / len(values)
    assert combined == 1 or sum(p <= at * (1 + 1e-12) for p in values) >= rejects
    below = at * (1 - 1e-9)
    assert sum(p < below for p in values) < rejects


DEPENDENCE = {
    "independent": lambda rng, n: [rng.random() for _ in range(n)],
    "the same": lambda rng, n: [rng.random()] * n,
    "opposite": lambda rng, n: [u if i % 2 else 1 - u for u in [rng.random()] for i in range(n)],
    # The worst case of Bonferroni: the small p-values never fall on the same completion.
    "disjoint": lambda rng, n: [(u + i / n) % 1 for u in [rng.random()] for i in range(n)],
}


@pytest.mark.parametrize("kind", DEPENDENCE)
def test_honest_work_is_rejected_no_more_often_than_stated(kind):
    rng, n, trials, level = random.Random(5), 4, 20_000, 0.05
    rows = [DEPENDENCE[kind](rng, n) for _ in range(trials)]
    shares = normalised_shares([1, 2, 3, 4], n, "shares")
    slack = 4 * math.sqrt(level * (1 - level) / trials)
    assert sum(bonferroni(row, shares) <= level for row in rows) / trials <= level + slack
    for rejects in range(1, n + 1):
        assert sum(ruger(row, rejects) <= level for row in rows) / trials <= level + slack


def test_disjoint_tests_use_the_whole_budget():
    rng = random.Random(6)
    rows = [DEPENDENCE["disjoint"](rng, 4) for _ in range(20_000)]
    rate = sum(bonferroni(row, [0.25] * 4) <= 0.2 for row in rows) / len(rows)
    assert rate == pytest.approx(0.2, abs=0.02)


@pytest.mark.parametrize("shares", [[1], [1, 0], [1, -1], [1, math.nan], [1, math.inf], [1, 1, 1]])
def test_invalid_shares_are_refused(shares):
    with pytest.raises(ValueError, match=r"AllOf\.shares: expected 2 finite numbers > 0"):
        normalised_shares(shares, 2, "AllOf.shares")


def test_missing_p_value_is_formatted_as_empty():
    assert [p_text(p) for p in (1.0, 1.234e-5, 1e-300, 1e-301, 0.0)] == [
        "1.0e+00", "1.2e-05", "1.0e-300", "< 1e-300", "< 1e-300",
    ]  # fmt: skip


def test_p_values_to_compare_with_a_level_are_those_of_the_deciding_members():
    members = (
        reject("log_probs", p_value=2e-4),
        reject("inner", p_value=0.03, members=(reject("length", p_value=0.01), reject("screens"))),
        accept("other", p_value=1e-5),
    )
    combined = reject("stack", p_value=2e-3, members=members)
    assert deciding_p_values(combined) == {"log_probs": 2e-4, "length": 0.01}
    by_rule = reject("stack", p_value=0.5, members=(reject("screens"), accept("b", p_value=0.1)))
    assert deciding_p_values(by_rule) == {}
    assert deciding_p_values(accept("alone", p_value=0.25)) == {"alone": 0.25}
