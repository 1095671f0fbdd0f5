"""The decision: honest samplers are rejected at most at the stated rate, and cheats are found."""

from dataclasses import fields, replace
from fractions import Fraction
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.logprob.evidence import binomial_tail, heaviest_span, weigh
from grpo_guard.logprob.profile import BFLOAT16, FLOAT32, TEXT, DriftProfile, bf16_ulp
from tests.helpers.reference_stats import reference_stats
from tests.helpers.support import support_mask


@given(n=st.integers(1, 60), k=st.integers(0, 60), rate=st.fractions(min_value=0, max_value=1))
def test_binomial_tail_matches_the_exact_sum(n, k, rate):
    if not (0 < rate < 1 and k <= n) or not 0 < float(rate) < 1:
        return
    rate = Fraction(float(rate))
    exact = sum(comb(n, i) * rate**i * (1 - rate) ** (n - i) for i in range(k, n + 1))
    assert binomial_tail(k, n, float(rate)) == pytest.approx(float(exact), rel=1e-9, abs=1e-12)


def test_binomial_tail_is_accurate_far_out():
    assert binomial_tail(1, 1000, 1e-12) == pytest.approx(1e-9, rel=1e-6)
    assert binomial_tail(5, 100, 1e-7) == pytest.approx(comb(100, 5) * 1e-35, rel=1e-4)


def simulated(rng, spec, n=100, vocab=400, *, drawn_with=None, drift=0.0):
    """Statistics of one completion from random logits like a model's: mostly confident, at times
    not.
    """
    sharpness = rng.choice([2.0, 4.0, 8.0], size=(n, 1))
    logits = rng.standard_normal((n, vocab)) * sharpness
    sampler = drawn_with or spec
    seen_by_sampler = logits + drift * rng.standard_normal(logits.shape)
    scaled = seen_by_sampler / sampler.temperature
    p = np.exp(scaled - scaled.max(-1, keepdims=True)) * support_mask(seen_by_sampler, sampler)
    p /= p.sum(-1, keepdims=True)
    drawn = (rng.random((n, 1)) > p.cumsum(-1)).sum(-1).clip(max=vocab - 1)
    return reference_stats(logits, drawn, spec)


SPECS = [
    SamplingSpec("transformers", 1.0, 50, 1.0),
    SamplingSpec("transformers", 1.0, 0, 1.0),
    SamplingSpec("vllm", 0.7, 20, 0.8),
    SamplingSpec("sglang", 1.3, 0, 0.9, 0.05),
]


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(("profile", "drift"), [(FLOAT32, 0.0), (BFLOAT16, 0.05)])
def test_honest_p_values_are_super_uniform(spec, profile, drift):
    rng, keyed = np.random.default_rng(0), np.random.default_rng(1)
    weighed = [
        weigh(simulated(rng, spec, drift=drift), profile, spec, shares=keyed.random(100))
        for _ in range(300)
    ]
    for p in (np.array([e.p_value for e in weighed]), np.array([e.unkeyed_p for e in weighed])):
        for level in (0.3, 0.1, 0.03):
            allowed = level + 3 * np.sqrt(level * (1 - level) / len(p))
            assert (p < level).mean() <= allowed, (level, (p < level).mean())
        assert (p < 1e-3).sum() == 0


@pytest.mark.slow
@pytest.mark.parametrize(("profile", "drift"), [(FLOAT32, 0.0), (BFLOAT16, 0.05)])
def test_long_completions_are_rejected_no_more_often(profile, drift):
    """A long completion has many windows and bets; any piece of it follows other honest text."""
    rng, keyed, spec = np.random.default_rng(2), np.random.default_rng(3), SPECS[1]
    texts = [simulated(rng, spec, n=8000, vocab=60, drift=drift) for _ in range(8)]
    for length in (1000, 4000, 8000):
        pieces = [_piece(s, a, a + length) for s in texts for a in range(0, 8000, length)]
        weighed = [weigh(s, profile, spec, shares=keyed.random(length)) for s in pieces]
        for p in (np.array([e.p_value for e in weighed]), np.array([e.unkeyed_p for e in weighed])):
            for level in (0.3, 0.05):
                allowed = level + 3 * np.sqrt(level * (1 - level) / len(p))
                assert (p < level).mean() <= allowed, (length, level, (p < level).mean())
            assert (p < 1e-3).sum() <= 1


def _piece(stats, start, end):
    columns = {f.name: getattr(stats, f.name) for f in fields(stats)}
    return replace(stats, **{k: None if v is None else v[start:end] for k, v in columns.items()})


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS)
def test_doubled_temperature_is_found_inside_the_support_too(spec):
    rng = np.random.default_rng(1)
    hot = SamplingSpec(spec.engine, spec.temperature * 2, spec.top_k, spec.top_p, spec.min_p)
    p = [weigh(simulated(rng, spec, drawn_with=hot), BFLOAT16, spec).p_value for _ in range(50)]
    assert sum(value < 1e-3 for value in p) >= 45


def test_honest_text_before_poison_does_not_offset_it():
    """Uniform draws from the top-50 never leave it; the bet must not be lost before the poison."""
    rng = np.random.default_rng(3)
    spec, found = SPECS[0], 0
    for _ in range(20):
        logits = rng.standard_normal((160, 400)) * rng.choice([2.0, 4.0, 8.0], size=(160, 1))
        p = np.exp(logits - logits.max(-1, keepdims=True)) * support_mask(logits, spec)
        p[128:] = support_mask(logits[128:], spec)
        p /= p.sum(-1, keepdims=True)
        drawn = (rng.random((160, 1)) > p.cumsum(-1)).sum(-1).clip(max=399)
        found += weigh(reference_stats(logits, drawn, spec), BFLOAT16, spec).p_value < 1e-3
    assert found >= 18


def stats_with_gaps(gaps):
    """A completion of confident tokens, except that some lie outside the support."""
    rng = np.random.default_rng(2)
    base = simulated(rng, SPECS[0], n=len(gaps))
    ones = np.ones(len(gaps))
    return type(base)(
        logprob=-0.01 * ones,
        max_logprob=-0.01 * ones,
        rank=np.zeros(len(gaps), dtype=np.int64),
        mass_above=0 * ones,
        tail_mass=ones,
        entropy=0.05 * ones,
        log_set_mass=0 * ones,
        log_flat_mass=np.zeros((len(gaps), 3)),
        in_set=ones.astype(bool),
        ties=0 * ones.astype(int),
        logit=20.0 * ones,
        edge_gap=np.asarray(gaps, dtype=float),
    )


@pytest.mark.slow
@pytest.mark.parametrize("vocab", [8192, 49_152, 151_936])
def test_wrong_digits_are_found_despite_consecutive_ids(vocab):
    """Ten neighbouring ids, one right at 95 %: the nine others must not hide behind it."""
    logits = np.full((100, vocab), -30.0)
    logits[:, 15:25] = np.log(0.05 / 9)
    logits[:, 18] = np.log(0.95)
    rng = np.random.default_rng(0)
    logits[:, rng.integers(100, vocab, 60)] = -9.0
    spec = SamplingSpec("transformers", 1.0, 50, 1.0)
    right = np.full(100, 18)
    wrong = right.copy()
    wrong[:25] = rng.choice([15, 16, 17, 19, 20, 21, 22, 23, 24], 25)
    assert weigh(reference_stats(logits, right, spec), FLOAT32, spec).p_value > 0.1
    assert weigh(reference_stats(logits, wrong, spec), FLOAT32, spec).p_value < 1e-3


def test_one_token_just_outside_is_drift_but_several_are_not():
    one = weigh(stats_with_gaps([0.3] + [0] * 99), BFLOAT16, SPECS[0])
    assert one.p_value > 0.1
    many = weigh(stats_with_gaps([0.3] * 8 + [0] * 92), BFLOAT16, SPECS[0])
    assert many.p_value < 1e-3


def test_one_token_far_outside_decides_alone():
    assert weigh(stats_with_gaps([7.0] + [0] * 99), BFLOAT16, SPECS[0]).p_value < 1e-3
    assert weigh(stats_with_gaps([7.0] + [0] * 99), TEXT, SPECS[0]).p_value > 1e-3


def test_gaps_below_the_margin_are_ignored():
    # |logit| = 20 has a bf16 unit of 0.125, so two units make the margin 0.25.
    assert weigh(stats_with_gaps([0.24] * 100), BFLOAT16, SPECS[0]).p_value == 1.0


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=30))
@settings(deadline=None)
def test_heaviest_span_matches_brute_force(weights):
    start, end = heaviest_span(np.array(weights))
    best = max(
        sum(weights[i:j]) for i in range(len(weights)) for j in range(i + 1, len(weights) + 1)
    )
    assert sum(weights[start:end]) == pytest.approx(best)


@given(st.floats(min_value=1e-30, max_value=1e30))
def test_bf16_ulp_matches_the_spacing_of_bfloat16(x):
    torch = pytest.importorskip("torch")
    value = torch.tensor(x, dtype=torch.bfloat16)
    if not torch.isfinite(value):
        return
    above = (value.view(torch.int16) + 1).view(torch.bfloat16).double().item()
    expected = above - value.double().item()
    assert bf16_ulp(np.array([value.double().item()]))[0] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"rates": ()}, "rates"),
        ({"rates": ((0.5, 1e-3), (0.2, 1e-4))}, "rates"),
        ({"rates": ((0.5, 1e-4), (1.0, 1e-3))}, "rates"),
        ({"ulps": -1.0}, "ulps"),
        ({"mass_margin": 1.0}, "mass_margin"),
        ({"least_tail": 0.0}, "least_tail"),
    ],
)
def test_inconsistent_profile_is_refused(changes, field):
    good = {
        "name": "x",
        "rates": ((0.25, 1e-3),),
        "ulps": 2.0,
        "mass_margin": 0.05,
        "least_tail": 1e-6,
        "floor_tail": 0.0,
    }
    with pytest.raises(ValueError, match=f"DriftProfile.{field}: expected"):
        DriftProfile(**{**good, **changes})
