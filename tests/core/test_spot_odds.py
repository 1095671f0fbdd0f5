"""The odds of checking a sample, against an enumeration of all draws."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_guard.guard.spot_odds import checked_of, odds


def by_enumeration(sent, poisoned, checked, power):
    """Average (caught, earned per round) over all draws and all outcomes of the checks."""
    caught = earned = 0.0
    draws = list(itertools.combinations(range(sent), checked))
    for draw in draws:
        for found in itertools.product((0, 1), repeat=poisoned):
            chance = math.prod(power if f else 1 - power for f in found) / len(draws)
            seen = any(found[i] for i in draw if i < poisoned)
            caught += chance * seen
            earned += chance * (poisoned - sum(found) if seen else poisoned)
    return caught, earned


@given(
    sent=st.integers(1, 7),
    poisoned=st.integers(0, 4),
    share=st.floats(0.01, 1),
    power=st.sampled_from([0.0, 0.3, 0.9, 1.0]),
)
def test_odds_match_the_enumeration_of_all_draws(sent, poisoned, share, power):
    poisoned = min(sent, poisoned)
    found = odds(sent, poisoned, share, power)
    caught, earned = by_enumeration(sent, poisoned, checked_of(sent, share), power)
    assert found.caught == pytest.approx(caught, abs=1e-12)
    if caught > 1e-9:
        assert found.rounds == pytest.approx(1 / caught)
        assert found.earned == pytest.approx(earned / caught, abs=1e-9)
    else:
        assert found.rounds == math.inf
        assert found.earned == (math.inf if poisoned else 0)


def test_fixed_number_finds_more_than_independent_draws():
    found = odds(1000, 10, 0.1, 0.9)
    assert 1 - (1 - 0.1 * 0.9) ** 10 < found.caught < 1
    assert odds(1000, 1, 0.1).caught == pytest.approx(0.1)
    assert odds(1000, 10, 1.0).earned == 0
    assert odds(10**6, 1, 1e-6).caught == pytest.approx(1e-6, rel=1e-6)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ((0, 0, 0.1), "sent"),
        ((5, 6, 0.1), "poisoned"),
        ((5, 1, 0), "share"),
        ((5, 1, 1, 2), "power"),
    ],
)
def test_invalid_arguments_are_named(arguments, field):
    with pytest.raises(ValueError, match=f"{field}: expected"):
        odds(*arguments)
