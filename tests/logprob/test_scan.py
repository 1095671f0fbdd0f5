"""The scan: super-uniform on honest tails, and sensitive to what a whole completion dilutes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammaincc

from grpo_guard.logprob.profile import FLOAT32, TEXT
from grpo_guard.logprob.scan import DRIFT_SHARE, LONGEST, gamma_tail, keyed_shares, scan, scan_tails


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 5, 40, 200])
def test_p_values_of_honest_tails_are_super_uniform(n):
    rng = np.random.default_rng(n)
    p = np.array([scan(rng.random(n)).p_value for _ in range(4000)])
    for level in (0.005, 0.02, 0.1, 0.5):
        slack = 4 * np.sqrt(level * (1 - level) / len(p))
        assert (p <= level).mean() <= level + slack


def test_scan_is_less_strict_than_a_union_bound_but_close():
    rng = np.random.default_rng(0)
    p = np.array([scan(rng.random(96)).p_value for _ in range(4000)])
    assert (p <= 0.05).mean() >= 0.015


def test_phrase_in_the_middle_is_found_and_located():
    rng = np.random.default_rng(3)
    tails = rng.random(400)
    tails[200:206] = [0.02, 0.001, 0.03, 0.005, 0.01, 0.02]
    found = scan(tails)
    assert found.p_value < 1e-3
    assert found.span[0] >= 195
    assert found.span[1] <= 211


def test_gamma_tail_matches_a_sum_of_exponentials():
    sums = np.random.default_rng(0).exponential(size=(100_000, 5)).sum(axis=1)
    tails = gamma_tail(np.array([5, 1, 3]), np.array([8.0, 3.0, 0.0]))
    assert tails == pytest.approx([(sums >= 8).mean(), np.exp(-3), 1.0], abs=0.003)
    shapes = np.arange(1, LONGEST + 1)
    for x in (1e-3, 5.0, 40.0, 700.0):
        expected = gammaincc(shapes, x)
        assert gamma_tail(shapes, np.full(LONGEST, x)) == pytest.approx(expected, rel=1e-9)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(1e-300, 1.0), min_size=1, max_size=60), st.integers(0, 59))
def test_smaller_tail_never_raises_the_p_value(tails, at):
    at %= len(tails)
    smaller = list(tails)
    smaller[at] /= 10
    before, after = scan(np.array(tails)), scan(np.array(smaller).clip(1e-300))
    assert after.p_value <= before.p_value * (1 + 1e-9)
    for found in (before, after):
        assert 0 <= found.p_value <= 1
        assert 1 <= found.span[1] - found.span[0] <= LONGEST


def stats_of(probabilities, chosen):
    """The token statistics that the scan reads."""
    from types import SimpleNamespace

    p = np.asarray(probabilities)
    at = np.asarray(chosen)
    tails = np.array([p[p <= p[i]].sum() for i in at])
    return SimpleNamespace(tail_mass=tails, logprob=np.log(p[at]))


EXACT = replace(FLOAT32, tau=0.0, least_tail=1e-300)


def test_tail_masses_become_uniform():
    p = np.array([0.6, 0.25, 0.1, 0.04, 0.01])
    chosen = np.random.default_rng(0).choice(5, size=20_000, p=p)
    shares = keyed_shares(b"key", tuple(chosen), len(chosen))
    tails = scan_tails(stats_of(p, chosen), EXACT, 1.0, shares)
    for level in (0.01, 0.1, 0.5, 0.9):
        assert (tails <= level).mean() == pytest.approx(level, abs=0.015)


def test_key_randomises_and_equal_completions_stay_equal():
    first = keyed_shares(b"one", (0, 1), 4)
    assert (first == keyed_shares(b"one", (0, 1), 4)).all()
    assert (first != keyed_shares(b"two", (0, 1), 4)).any()
    assert (first != keyed_shares(b"one", (0, 2), 4)).any()


@pytest.mark.parametrize("shares", [None, np.full(4, 0.5)])
def test_no_claim_without_a_bound_on_drift(shares):
    stats = stats_of([0.999, 0.001], (1, 1, 1, 1))
    assert scan(scan_tails(stats, EXACT, 1.0, shares)).p_value < 1e-6
    assert (scan_tails(stats, TEXT, 1.0, shares) == 1.0).all()


@pytest.mark.parametrize("shares", [None, np.zeros(2)])
def test_drift_allowance_is_added_back(shares):
    stats = stats_of([0.9, 0.1], (1, 1))
    drifted = replace(EXACT, tau=2.0)
    allowed = 0.1 * np.exp(DRIFT_SHARE * 2.0 / 0.5)
    assert scan_tails(stats, drifted, 0.5, shares) == pytest.approx(allowed)
