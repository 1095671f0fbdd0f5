"""TailProbabilityVerifier: the bound holds for honest samplers, and improbable tokens are found."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_guard import Cause, Completion, Guard, LogProbBoundVerifier, Outcome, Policy, SamplingSpec
from grpo_guard.core.registry import VERIFIERS, load
from grpo_guard.logprob.derive import wilson
from grpo_guard.logprob.profile import BFLOAT16, FLOAT32, TEXT
from grpo_guard.logprob.scorers.base import OutOfMemoryError
from grpo_guard.logprob.scorers.transformers import TransformersScorer
from grpo_guard.logprob.shares import Place, Places, falling_shares, place_after, shares_of
from grpo_guard.logprob.tail import TailProbabilityVerifier, token_p_values
from tests.helpers.reference_stats import reference_stats
from tests.helpers.support import support_mask
from tests.logprob.bundled_policy import SPEC, honest, policy

SPECS = [
    SamplingSpec("transformers", 1.0, 0, 1.0),
    SamplingSpec("transformers", 1.0, 5, 1.0),
    SamplingSpec("vllm", 0.7, 20, 0.8),
    SamplingSpec("sglang", 1.3, 0, 0.9, 0.05),
]


def drawn(rng, logits, spec):
    """Draw one honest token per row of logits, shape [..., V]."""
    scaled = logits / spec.temperature
    p = np.exp(scaled - scaled.max(-1, keepdims=True)) * support_mask(logits, spec)
    cumulative = p.cumsum(-1)
    u = rng.random(logits.shape[:-1]) * cumulative[..., -1]
    return (u[..., None] >= cumulative).sum(-1)


def tails(rng, rows, spec, vocab=40):
    """Tail masses of honest tokens under random, mostly confident logits, shape [rows]."""
    logits = rng.standard_normal((rows, vocab)) * rng.choice([1.0, 3.0, 6.0], size=(rows, 1))
    return reference_stats(logits, drawn(rng, logits, spec), spec).tail_mass


@given(
    st.lists(st.integers(-6, 6), min_size=2, max_size=12),
    st.integers(0, 12),
    st.floats(0.05, 1.0),
    st.floats(0.0, 0.9),
    st.sampled_from(["transformers", "vllm", "sglang"]),
    st.floats(0.3, 2.0),
)
@settings(deadline=None, max_examples=100)
def test_tail_mass_is_super_uniform(logits, top_k, top_p, min_p, engine, temperature):
    """P(tail <= a) <= a for every a, under any support, with ties (integers cause many)."""
    spec = SamplingSpec(engine, temperature, top_k, top_p, min_p)
    z = np.array(logits, dtype=float)
    p = np.exp((z - z.max()) / temperature) * support_mask(z, spec)
    p /= p.sum()
    tail = reference_stats(np.tile(z, (len(z), 1)), np.arange(len(z)), spec).tail_mass
    for level in tail:
        assert p[tail <= level].sum() <= level * (1 + 1e-9)


def shares_with_numbers(rng, rows, longest):
    """Shares of a completion's positions, a third of which are number or answer positions."""
    places = [Place(int(k)) for k in rng.choice([0, 0, 0, 0, 1, 2], size=rows)]
    return shares_of(places, longest, numbers=8, answers=2)


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("longest", [24, None])
def test_honest_completions_are_rejected_at_most_at_the_stated_rate(spec, longest):
    """The length depends on the data in the worst way: a rare token ends the completion."""
    rng = np.random.default_rng(0)
    alpha, total, rejected = 0.1, 4000, 0
    masses = tails(rng, total * 24, spec).reshape(total, 24)
    for row in masses:
        stops = np.flatnonzero(row < alpha / np.arange(1, 25))
        n = stops[0] + 1 if len(stops) else 24
        p = token_p_values(row[:n], shares_with_numbers(rng, n, longest), 0.0)
        rejected += p.min() < alpha
    assert wilson(rejected, total, 0.999)[0] <= alpha


def test_negative_control_budget_divided_by_realised_length():
    """Control of the test above: with uniform tails the share alpha / n rejects too many."""
    rng = np.random.default_rng(1)
    alpha, total, naive, fixed = 0.1, 4000, 0, 0
    for row in rng.random((total, 64)):
        stops = np.flatnonzero(row < alpha / np.arange(1, 65))
        n = stops[0] + 1 if len(stops) else 64
        naive += row[:n].min() < alpha / n
        fixed += (
            token_p_values(
                row[:n], shares_of([Place.ELSEWHERE] * n, 64, numbers=0, answers=0), 0.0
            ).min()
            < alpha
        )
    assert wilson(naive, total, 0.999)[0] > 2 * alpha
    assert wilson(fixed, total, 0.999)[0] <= alpha


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS[:2])
def test_planted_improbable_token_is_found(spec):
    rng = np.random.default_rng(2)
    alpha, total, n = 1e-3, 1000, 60
    shares = shares_of([Place.ELSEWHERE] * n, n, numbers=0, answers=0)
    false = found = 0
    for _ in range(total):
        masses = tails(rng, n, spec)
        false += token_p_values(masses, shares, FLOAT32.tau).min() < alpha
        masses[rng.integers(n)] = 1e-6
        found += token_p_values(masses, shares, FLOAT32.tau).min() < alpha
    assert found == total
    assert wilson(false, total, 0.999)[0] <= alpha


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS)
def test_drift_within_the_allowance_keeps_the_bound(spec):
    """The sampler's logits differ from ours by up to a half, so its log-probs by up to 1."""
    rng = np.random.default_rng(4)
    alpha, total, n = 0.1, 2000, 24
    ours = rng.standard_normal((total * n, 40)) * rng.choice([1.0, 3.0, 6.0], size=(total * n, 1))
    theirs = ours + rng.uniform(-0.5, 0.5, ours.shape)
    masses = reference_stats(ours, drawn(rng, theirs, spec), spec).tail_mass.reshape(total, n)
    shares = shares_with_numbers(rng, n, n)
    rejected = sum(
        token_p_values(row, shares, BFLOAT16.tau / spec.temperature).min() < alpha for row in masses
    )
    assert wilson(rejected, total, 0.999)[0] <= alpha


@given(
    st.lists(st.sampled_from(list(Place)), min_size=1, max_size=200),
    st.one_of(st.none(), st.integers(1, 150)),
    st.integers(0, 40),
    st.integers(0, 10),
)
def test_shares_never_exceed_the_budget_and_depend_only_on_the_past(
    places, longest, numbers, answers
):
    shares = shares_of(places, longest, numbers=numbers, answers=answers)
    assert shares.sum() <= 1 + 1e-9
    half = len(places) // 2
    before = shares_of(places[:half], longest, numbers=numbers, answers=answers)
    np.testing.assert_array_equal(shares[:half], before)
    if longest is None:
        assert (shares > 0).all()


def test_falling_shares_match_the_docstring():
    shares = falling_shares(100_000)
    assert shares.sum() < 1
    assert (np.diff(shares) <= 0).all()
    assert shares[[0, 63, 256]] == pytest.approx([1 / 128, 1 / 128, 1 / 3072])


def test_padding_dilutes_nothing_with_a_declared_length():
    def p_of_poison(places, at, longest):
        tail = np.ones(len(places))
        tail[at] = 1e-5
        shares = shares_of(places, longest, numbers=8, answers=4)
        return token_p_values(tail, shares, 0.0).min()

    words = [Place.ELSEWHERE] * 200
    short = p_of_poison([Place.NUMBER], 0, 512)
    assert p_of_poison([Place.NUMBER, *words], 0, 512) == short  # after
    assert p_of_poison([*words, Place.NUMBER], 200, 512) == short  # before
    # Many numbers at the start use up the extra shares, but no more than those.
    crowded = p_of_poison([Place.NUMBER] * 201, 200, 512)
    assert short < crowded == pytest.approx(1e-5 * 512 / 0.5)
    # Undeclared: padding after the text still costs nothing, padding before it a little.
    assert p_of_poison([Place.NUMBER, *words], 0, None) == p_of_poison([Place.NUMBER], 0, None)


def test_number_positions_are_tighter():
    for longest in (64, 512, None):
        elsewhere, number, answer = (
            shares_of([place], longest, numbers=64, answers=16)[0] for place in Place
        )
        assert elsewhere < number < answer


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", Place.ELSEWHERE),
        ("Tom has", Place.ELSEWHERE),
        ("**Step", Place.ELSEWHERE),
        ("well - ", Place.ELSEWHERE),
        ("3 + 4 =", Place.NUMBER),
        ("3 +", Place.NUMBER),
        ("(3 + 4) * ", Place.NUMBER),
        ("it costs $", Place.NUMBER),
        ("it costs 1,", Place.NUMBER),
        ("it costs 12", Place.NUMBER),
        ("x \\cdot", Place.NUMBER),
        ("\\frac{", Place.NUMBER),
        ("#### ", Place.ANSWER),
        ("#### -1", Place.ANSWER),
        ("so \\boxed{", Place.ANSWER),
        ("so \\boxed{3}", Place.ELSEWHERE),
        ("The answer is", Place.ANSWER),
        ("**Answer:** ", Place.ANSWER),
        ("<answer>", Place.ANSWER),
        ("<answer>7</answer>", Place.ELSEWHERE),
        ("The answer is that she", Place.ELSEWHERE),
    ],
)
def test_preceding_tokens_tell_whether_a_number_is_due(text, place):
    assert place_after(text) is place


def test_places_depend_only_on_preceding_tokens():
    _, tokenizer = policy()
    places = Places(tokenizer)
    ids = honest(8)[0].completion_ids
    all_of_them = places(ids)
    assert Place.NUMBER in all_of_them
    for t in range(len(ids)):
        assert places((*ids[:t], tokenizer.eos_token_id))[t] is all_of_them[t]


def test_zero_tail_has_a_tiny_p_value_and_zero_share_has_1():
    """A tail that float32 rounds to 0 is tiny, but no probability is 0."""
    p = token_p_values(np.array([0.0, 0.0, 1.0]), np.array([0.5, 0.0, 0.5]), 1.0)
    assert 0 < p[0] < 1e-36
    assert p[1:].tolist() == [1.0, 1.0]


@pytest.fixture(scope="module")
def verifier():
    return TailProbabilityVerifier(*policy(), sampling=SPEC, profile="float32")


@pytest.mark.slow
def test_honest_completions_pass(verifier):
    verdicts = verifier.verify(honest(256))
    assert sum(v.rejected for v in verdicts) == 0
    assert all(v.accepted and 0 < v.p_value <= 1 for v in verdicts)


def test_random_tokens_are_rejected_and_the_worst_is_reported(verifier):
    rng = random.Random(0)
    _, tokenizer = policy()
    batch = []
    for completion in honest(32):
        ids = [rng.randrange(4, len(tokenizer)) for _ in completion.completion_ids[:-1]]
        ids.append(tokenizer.eos_token_id)
        text = tokenizer.decode(ids, skip_special_tokens=True)
        batch.append(Completion(completion.prompt, text, completion_ids=ids))
    verdicts = verifier.verify(batch)
    assert all(v.rejected and v.cause is Cause.JUDGED for v in verdicts)
    for verdict in verdicts:
        finding = verdict.findings[0]
        assert finding.kind == "improbable_token"
        start, end = finding.token_span
        assert end == start + 1
        assert f"token {start} (id " in finding.message
        assert "log-prob" in finding.message
        assert "rank" in finding.message


@pytest.mark.slow
def test_swapped_token_is_located(verifier):
    """Found only where the small policy is confident enough, and then at its position."""
    rng = random.Random(3)
    _, tokenizer = policy()
    swapped, places = [], []
    for completion in honest(256):
        ids = list(completion.completion_ids)
        at = rng.randrange(len(ids) - 1)
        ids[at] = rng.randrange(4, len(tokenizer))
        text = tokenizer.decode(ids, skip_special_tokens=True)
        swapped.append(Completion(completion.prompt, text, completion_ids=ids))
        places.append(at)
    verdicts = verifier.verify(swapped)
    rejected = [
        (c, v, at) for c, v, at in zip(swapped, verdicts, places, strict=True) if v.rejected
    ]
    assert len(rejected) >= 50
    located = 0
    for completion, verdict, at in rejected:
        finding = verdict.findings[0]
        # Tokens after a foreign token may look stranger than the token itself.
        located += finding.token_span[0] in (at, at + 1)
        if finding.char_span:
            start, end = finding.char_span
            piece = tokenizer.decode([completion.completion_ids[finding.token_span[0]]])
            assert completion.text[start:end].strip() == piece.strip()
    assert located >= 0.9 * len(rejected)


def test_text_without_ids_is_rejected_without_a_suitable_profile(verifier):
    good = honest(8)[0]
    text_only = Completion(good.prompt, good.text)
    (verdict,) = verifier.verify([text_only])
    assert (verdict.outcome, verdict.cause) == (Outcome.REJECT, Cause.MALFORMED)
    assert "completion_ids" in verdict.reason
    passes = Guard(verifier, policy=Policy(on_abstain="pass"))
    assert passes.apply([1.0, 1.0], [text_only, good]) == [None, 1.0]
    claims = TailProbabilityVerifier(
        *policy(), sampling=SPEC, text_profile=replace(TEXT, name="mine", tau=8.0)
    )
    (verdict,) = claims.verify([text_only])
    assert verdict.accepted
    assert verdict.findings[0].kind == "retokenised"
    strict = TailProbabilityVerifier(
        *policy(), sampling=SPEC, require_ids=True, text_profile=claims.text_profile
    )
    assert strict.verify([text_only])[0].cause is Cause.MALFORMED


def test_missing_ids_are_reported_and_other_members_judge(verifier):
    good = honest(8)[0]
    text_only = Completion(good.prompt, good.text)
    lenient = TailProbabilityVerifier(*policy(), sampling=SPEC, require_ids=False)
    assert lenient.verify([text_only])[0].cause is Cause.NOT_APPLICABLE
    bounds = LogProbBoundVerifier(*policy(), sampling=SPEC)
    guard = Guard(bounds & lenient, policy=Policy(on_abstain="pass"))
    foreign = Completion(good.prompt, "Buy zebras, all hail to the thief of the seven seas!")
    assert guard.apply([1.0, 1.0], [text_only, foreign]) == [1.0, None]
    with pytest.raises(ValueError, match="tail_probability skips completions"):
        Guard(lenient, policy=Policy(on_abstain="pass"))


def test_pass_is_refused_without_a_declared_length(verifier):
    endless = TailProbabilityVerifier(*policy(), sampling=replace(SPEC, max_new_tokens=None))
    with pytest.raises(ValueError, match=r"tail_probability runs out of memory.*set max_new"):
        Guard(endless, policy=Policy(on_abstain="pass"))


def test_low_temperature_magnifies_logit_drift():
    cold = replace(SPEC, temperature=0.5)
    model, tokenizer = policy()
    scorer = TransformersScorer(model)
    completion = honest(8)[0]
    values = []
    for profile in (replace(FLOAT32, tau=0.0), replace(FLOAT32, tau=0.1)):
        check = TailProbabilityVerifier(
            None, tokenizer, sampling=cold, scorer=scorer, profile=profile
        )
        values.append(check.verify([completion])[0].p_value)
    assert values[1] == pytest.approx(min(1.0, values[0] * math.exp(0.2)))


class Choking:
    """A scorer that cannot hold long completions, nor batches that contain one."""

    def __init__(self, scorer, most):
        self.inner, self.most = scorer, most

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def score(self, sequences, spec, *, mass_margin=0.0):
        if any(len(s.completion_ids) > self.most for s in sequences):
            raise OutOfMemoryError("too long for this budget")
        return self.inner.score(sequences, spec, mass_margin=mass_margin)


def test_completion_that_does_not_fit_abstains_alone():
    model, tokenizer = policy()
    batch = honest(16)
    most = sorted(len(c.completion_ids) for c in batch)[-2]
    long = [len(c.completion_ids) > most for c in batch]
    assert 1 <= sum(long) < len(batch)
    scorer = Choking(TransformersScorer(model), most)
    check = TailProbabilityVerifier(None, tokenizer, sampling=SPEC, scorer=scorer)
    causes = [v.cause for v in check.verify(batch)]
    assert causes == [Cause.OUT_OF_MEMORY if yes else Cause.JUDGED for yes in long]


def test_arguments_are_checked_and_verifier_is_registered():
    assert load(VERIFIERS, "tail_probability") is TailProbabilityVerifier
    model, tokenizer = policy()
    scorer = TransformersScorer(model)
    for given_model, given_scorer, got in ((None, None, "neither"), (model, scorer, "both")):
        with pytest.raises(ValueError, match=f"expected exactly one of them, got {got}"):
            TailProbabilityVerifier(given_model, tokenizer, sampling=SPEC, scorer=given_scorer)
    with pytest.raises(ValueError, match="memory_budget: expected None"):
        TailProbabilityVerifier(None, tokenizer, sampling=SPEC, scorer=scorer, memory_budget=2**30)
    with pytest.raises(ValueError, match="number_positions: expected an integer >= 0, got -1"):
        TailProbabilityVerifier(model, tokenizer, sampling=SPEC, number_positions=-1)
