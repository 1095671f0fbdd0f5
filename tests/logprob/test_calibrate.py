"""Calibration: observed rates are bounded, others inherited; a profile fits only one set-up."""

import json
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_guard import Completion, LogProbBoundVerifier, SamplingSpec
from grpo_guard.evals.stats import Rate
from grpo_guard.logprob.calibrate import CalibrationError, _both_ways, calibrate
from grpo_guard.logprob.derive import (
    HonestTokens,
    derive,
    gap_rates,
    lower_bound,
    tail_counts,
    upper_bound,
    wilson,
)
from grpo_guard.logprob.evidence import binomial_tail
from grpo_guard.logprob.profile import BFLOAT16, FLOAT32
from grpo_guard.logprob.profile_file import MAX_BYTES, ProfileFile, profile_of
from grpo_guard.logprob.scorers.transformers import TransformersScorer
from grpo_guard.logprob.tail import TailProbabilityVerifier
from tests.logprob.bundled_policy import SPEC, honest, policy

# (hits, total, lower, upper), one-sided 95 %: closed forms, or exact binomial tails by hand.
KNOWN = [(0, 100, 0.0, 1 - 0.05**0.01), (100, 100, 0.05**0.01, 1.0), (1, 1, 0.05, 1.0)]


@pytest.mark.parametrize(("hits", "total", "low", "high"), KNOWN)
def test_exact_bounds_in_closed_form(hits, total, low, high):
    assert lower_bound(hits, total) == pytest.approx(low)
    assert upper_bound(hits, total) == pytest.approx(high)


@pytest.mark.slow
@given(st.integers(1, 3000), st.floats(0, 1))
@settings(deadline=None)
def test_exact_bounds_solve_their_equations(total, share):
    hits = min(total, int(share * total) + 1)
    low = lower_bound(hits, total)
    assert binomial_tail(hits, total, low) == pytest.approx(0.05, rel=1e-4)
    if hits < total:
        high = upper_bound(hits, total)
        assert 1 - binomial_tail(hits + 1, total, high) == pytest.approx(0.05, rel=1e-4)
        assert low < hits / total < high


@settings(deadline=None)  # the first call imports scipy
@given(st.integers(1, 500), st.floats(0, 1))
def test_wilson_matches_the_evals(total, share):
    hits = round(share * total)
    assert wilson(hits, total) == pytest.approx(Rate(hits, total).interval)


def rates_of(gaps, n, base=BFLOAT16):
    rates = gap_rates(np.array([*gaps, *[0.0] * (n - len(gaps))]), base)
    return {rate.gap: (rate.rate, rate.source) for rate in rates}


def test_observed_rates_are_bounded_by_the_data_in_both_directions():
    rates = rates_of([0.3] * 5, 10_000)
    assert rates[0.25] == (upper_bound(5, 10_000), "measured")  # 1.05e-3, above the built-in 1e-3
    tighter = rates_of([0.3], 100_000)
    assert tighter[0.25] == (upper_bound(1, 100_000), "measured")
    assert tighter[0.25][0] < BFLOAT16.rate(np.array([0.25]))[0]


def test_unobserved_rates_take_the_smaller_of_bound_and_built_in_rate():
    rates = rates_of([], 10_000)
    count = upper_bound(0, 10_000)
    assert count == pytest.approx(3e-4, rel=0.01)
    assert rates[0.05] == (count, "count")  # the built-in profile has no rate this near
    assert rates[0.5] == (count, "count")
    assert rates[1.0] == (1e-4, "inherited")
    assert rates[9.0] == (1e-9, "inherited")


def test_contradicted_base_profile_is_not_extrapolated():
    rates = rates_of([0.3] * 100, 10_000)
    assert rates[0.25][1] == "measured"
    assert rates[9.0] == (upper_bound(0, 10_000), "count")


@pytest.mark.slow
@given(st.lists(st.floats(0, 12), max_size=30), st.integers(100, 5000))
@settings(deadline=None)
def test_rates_never_rise(gaps, n):
    for base in (BFLOAT16, FLOAT32):
        values = [rate for rate, _ in rates_of(gaps, n, base).values()]
        assert all(a >= b for a, b in pairwise(values))


def tokens(n=5000, *, gaps=None, tails=None, drift=()):
    return HonestTokens(
        np.zeros(n) if gaps is None else np.asarray(gaps, dtype=float),
        np.random.default_rng(0).random(n) if tails is None else np.asarray(tails),
        np.asarray(drift, dtype=float),
    )


def test_tau_is_measured_if_log_probs_are_comparable():
    numbers = derive(tokens(drift=[0.01, -0.02, 0.4]), BFLOAT16, temperature=0.5)
    assert (numbers.tau.value, numbers.tau.source) == (pytest.approx(1.5 * 0.4 * 0.5), "measured")
    still = derive(tokens(drift=[0.0] * 9), BFLOAT16, temperature=1.0)
    assert still.tau.value == FLOAT32.tau
    other_kind = derive(tokens(drift=[0.7] * 9), BFLOAT16, temperature=1.0)
    assert (other_kind.tau.value, other_kind.tau.source) == (BFLOAT16.tau, "inherited")
    assert derive(tokens(), FLOAT32, 1.0).tau.value == FLOAT32.tau


def test_excess_tails_loosen_the_thresholds_based_on_them():
    fine = derive(tokens(), BFLOAT16, 1.0)
    assert (fine.least_tail.source, fine.floor_tail.source) == ("inherited", "inherited")
    # Six of 5,000 at 1e-5 or less are too many for 1e-4 but not for 1e-3.
    small = np.r_[np.full(5, 1e-5), np.ones(4994), 1e-9]
    loose = derive(tokens(tails=small), BFLOAT16, 1.0)
    assert (loose.least_tail.value, loose.least_tail.source) == (pytest.approx(1e-3), "measured")
    assert (loose.floor_tail.value, loose.floor_tail.source) == (0.0, "measured")


def test_uniform_tails_are_not_excessive():
    tails = np.random.default_rng(5).random(50_000)
    assert not any(count.exceeds for count in tail_counts(tails))


def test_text_of_another_model_is_refused():
    with pytest.raises(ValueError, match="3000 of 5000 tokens lie outside the declared support"):
        gap_rates(np.r_[np.full(3000, 2.0), np.zeros(2000)], BFLOAT16)


@cache
def verifiers():
    model, tokenizer = policy()
    scorer = TransformersScorer(model)
    kinds = (LogProbBoundVerifier, TailProbabilityVerifier)
    return [kind(None, tokenizer, sampling=SPEC, scorer=scorer) for kind in kinds]


@cache
def calibrated():
    return calibrate(verifiers(), honest(256), base=FLOAT32)


@pytest.mark.slow
def test_honest_completions_of_the_bundled_policy():
    result = calibrated()
    assert result.completions == 256
    assert result.tokens == sum(len(c.completion_ids) for c in honest(256))
    assert [f.verifier for f in result.false_positives] == ["logprob_bound", "tail_probability"]
    for fpr in result.false_positives:
        assert (fpr.rejected, fpr.completions, fpr.low) == (0, 256, 0.0)
        assert 0.01 < fpr.high < 0.02
    assert result.edge_gaps.outside == 0
    assert result.profile.tau.source == "inherited"
    assert not any(count.exceeds for count in result.tail_counts)


@pytest.mark.slow
def test_halves_share_no_prompt():
    from grpo_guard.logprob.calibrate import score_honest

    ways = _both_ways(score_honest(verifiers()[0], honest(64), FLOAT32))
    for one, other in ways:
        assert not {h.encoded.prompt_ids for h in one} & {h.encoded.prompt_ids for h in other}
    assert sum(len(other) for _, other in ways) == 64


def with_log_probs(completions, shift=0.0):
    model, _ = policy()
    encoded = [verifiers()[0].encoder.encode(c) for c in completions]
    scored = TransformersScorer(model).score(encoded, SPEC)
    return [
        replace(c, sampler_logprobs=(s.logprob + shift).tolist())
        for c, s in zip(completions, scored, strict=True)
    ]


@pytest.mark.slow
def test_drift_is_reported_from_sender_log_probs():
    result = calibrate(verifiers()[:1], with_log_probs(honest(256), 0.08), base=FLOAT32)
    assert result.drift.tokens == result.tokens
    assert result.drift.p50 == pytest.approx(0.08, abs=1e-3)
    assert result.drift.lowest == pytest.approx(0.08, abs=1e-3)
    assert result.profile.tau.value == pytest.approx(0.12, abs=2e-3)


@pytest.mark.slow
def test_wrong_temperature_is_reported_and_not_calibrated_away():
    hot = honest(256, seed=5, temperature=2.0)
    result = calibrate(verifiers()[:1], hot, base=FLOAT32)
    assert any(count.exceeds for count in result.tail_counts)


@pytest.mark.parametrize(
    ("change", "index", "problem"),
    [
        (lambda c: c[:8], None, "expected at least 2000 tokens, got"),
        (lambda c: [c[0], Completion(c[1].prompt, c[1].text), *c[2:]], 1, "expected token ids"),
        (lambda c: [*c[:3], replace(c[3], text="other"), *c[4:]], 3, "malformed"),
        (lambda c: [replace(c[0], sampler_logprobs=[0.0]), *c[1:]], 0, "one per token, got 1"),
        (lambda c: [c[0]] * 200, None, "at least two prompts"),
    ],
)
def test_invalid_input_error_names_the_completion(change, index, problem):
    with pytest.raises(CalibrationError, match=problem) as caught:
        calibrate(verifiers(), change(list(honest(256))))
    assert caught.value.index == index


def test_profile_fits_one_sampler():
    model, tokenizer = policy()
    other = TailProbabilityVerifier(model, tokenizer, sampling=replace(SPEC, top_k=20))
    with pytest.raises(ValueError, match="tail_probability: sampling: expected that of logprob"):
        calibrate([verifiers()[0], other], honest(256))


@pytest.fixture
def path(tmp_path):
    (tmp_path / "profile.json").write_text(calibrated().model_dump_json())
    return tmp_path / "profile.json"


def test_profile_round_trips_through_a_file(path):
    profile = profile_of(path)
    assert profile.rates == tuple((r.gap, r.rate) for r in calibrated().profile.rates)
    assert profile.tau == FLOAT32.tau
    model, tokenizer = policy()
    for given_as in (path, str(path)):
        verifier = LogProbBoundVerifier(
            model, tokenizer, sampling=replace(SPEC, max_new_tokens=None), profile=given_as
        )
        assert verifier.profile == profile or verifier.profile.origin.path == str(path)
        assert verifier.verify(honest(8))[0].accepted


def test_mismatched_profile_is_refused_with_every_difference(path):
    model, tokenizer = policy()
    other = SamplingSpec("vllm", 1.0, 50, 0.9, max_new_tokens=64)
    with pytest.raises(ValueError, match="calibrated for something else") as caught:
        LogProbBoundVerifier(
            type(model)(model.config).bfloat16(), tokenizer, sampling=other, profile=path
        )
    message = str(caught.value)
    assert str(path) in message
    assert "sampling.engine: expected 'transformers', got 'vllm'" in message
    assert "sampling.top_p: expected 1.0, got 0.9" in message
    assert "identity.dtype: expected 'float32', got 'bfloat16'" in message
    assert "temperature" not in message


def test_profile_of_another_architecture_is_refused(path):
    model, tokenizer = policy()
    data = json.loads(path.read_text())
    data["identity"]["architecture"] = "llama 24x2048, vocabulary 32000"
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=r"identity\.architecture: expected 'llama 24x2048"):
        TailProbabilityVerifier(model, tokenizer, sampling=SPEC, profile=path)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "Invalid JSON"),
        ("[" * 200_000, "Invalid JSON"),
        ("[]", "should be an object"),
        (" " * (MAX_BYTES + 1), f"expected at most {MAX_BYTES} bytes"),
        ("{}", "format: Field required"),
        (lambda d: d | {"format": 2}, "format: expected 1, got 2"),
        (lambda d: d | {"surprise": 1}, "surprise: Extra inputs"),
        (lambda d: {k: v for k, v in d.items() if k != "identity"}, "identity: Field required"),
        (
            lambda d: _sampled(d, drop="min_p"),
            "sampling: Value error, expected min_p, got engine",
        ),
        (lambda d: _sampled(d, mirostat=2), "sampling: Value error, expected no others, got engi"),
        (lambda d: _with(d, "rates", []), "DriftProfile.rates: expected"),
        (lambda d: _with(d, "tau", {"value": -1, "source": "measured"}), "DriftProfile.tau"),
        (lambda d: _with(d, "tau", {"value": float("nan"), "source": "measured"}), "tau.value"),
        (lambda d: _with(d, "ulps", {"value": "x", "source": "measured"}), "ulps.value"),
    ],
)
def test_file_that_is_not_a_profile_is_reported(path, content, problem):
    if not isinstance(content, str):
        content = json.dumps(content(json.loads(path.read_text())))
    path.write_text(content)
    with pytest.raises(ValueError, match=r"profile\.json: ") as caught:
        profile_of(path)
    assert problem in str(caught.value)


def _sampled(data, drop=None, **more):
    kept = {name: value for name, value in data["sampling"].items() if name != drop}
    return data | {"sampling": kept | more}


def _with(data, name, value):
    return data | {"profile": data["profile"] | {name: value}}


def test_profile_names_and_missing_files_are_distinguished(tmp_path):
    model, tokenizer = policy()
    with pytest.raises(
        ValueError, match=r"expected one of bfloat16, float32, text, bitwise or the path"
    ):
        LogProbBoundVerifier(model, tokenizer, sampling=SPEC, profile="bf16")
    with pytest.raises(ValueError, match=r"nowhere\.json: expected a readable profile"):
        LogProbBoundVerifier(model, tokenizer, sampling=SPEC, profile=tmp_path / "nowhere.json")


def test_file_describes_itself():
    data = json.loads(calibrated().model_dump_json())
    assert data["format"] == 1
    assert data["created_by"].startswith("grpo-guard ")
    assert data["sampling"]["top_k"] == 50
    assert set(data["identity"]) == {"engine", "architecture", "dtype"}
    assert "cross-fitted" in data["method"]
    assert {rate["source"] for rate in data["profile"]["rates"]} <= {
        "measured", "count", "inherited",
    }  # fmt: skip
    assert ProfileFile.model_validate(data) == calibrated()
