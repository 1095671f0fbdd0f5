"""The arithmetic on lists of likely tokens against float64 from full logits."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_guard import LogProbBoundVerifier
from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.evidence import weigh
from grpo_guard.logprob.profile import FLOAT32
from grpo_guard.logprob.scorers.top_stats import SLACK, TopList, TopListError
from grpo_guard.logprob.scorers.vllm import VLLMScorer
from tests.helpers.reference_stats import reference_stats
from tests.helpers.support import support_mask
from tests.logprob.bundled_policy import policy
from tests.logprob.fake_top_list import FakeBackend, log_softmax, positions_of

CLOSE = {"rtol": 1e-9, "atol": 1e-9}


def spec_of(**changes):
    return SamplingSpec(
        **{"engine": "vllm", "temperature": 1.0, "top_k": 5, "top_p": 1.0, **changes}
    )


def scored(logits, targets, spec, *, length=8, mass_margin=0.0, **options):
    backend = FakeBackend(length, logits)
    scorer = VLLMScorer(backend, "fake", vocab_size=np.shape(logits)[-1], **options)
    sequence = Encoded((0,), tuple(int(t) for t in targets), False)
    (stats,) = scorer.score([sequence], spec, mass_margin=mass_margin)
    return stats


def random_logits(seed, rows, vocab, *, ties):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(rows, vocab)) * rng.choice([0.5, 2.0, 6.0])
    return np.round(logits) if ties else logits


cases = given(
    seed=st.integers(0, 10**6),
    vocab=st.integers(9, 300),
    length=st.integers(2, 9),
    temperature=st.sampled_from([0.25, 0.5, 1.0, 2.0, 4.0]),  # powers of two: ties stay ties
    top_k=st.integers(1, 9),
    top_p=st.sampled_from([1.0, 0.9, 0.5]),
    min_p=st.sampled_from([0.0, 0.05, 0.4]),
    engine=st.sampled_from(["transformers", "vllm"]),
    ties=st.booleans(),
)


@settings(deadline=None, max_examples=150)
@cases
def test_exact_where_documented_and_conservative_elsewhere(
    seed, vocab, length, temperature, top_k, top_p, min_p, engine, ties
):
    spec = spec_of(
        engine=engine,
        temperature=temperature,
        top_k=min(top_k, length),
        top_p=top_p,
        min_p=min_p,
        eos_token_ids=(1, 7),
    )
    logits = random_logits(seed, 12, vocab, ties=ties)
    targets = np.random.default_rng(seed + 1).integers(0, vocab, 12)
    targets[:6] = np.argsort(-logits[:6], axis=-1)[np.arange(6), np.arange(6) % length]
    got = scored(logits, targets, spec, length=length)
    expected = reference_stats(logits, targets, spec)
    assert got.finite

    ranked = np.sort(log_softmax(logits), axis=-1)[:, ::-1]
    own = log_softmax(logits)[np.arange(12), targets]
    open_ended = (vocab > length) & np.isclose(ranked[:, spec.top_k - 1], ranked[:, length - 1])
    sure = ~open_ended | (top_p == 1)
    # On the declared top-k everything is exact at every temperature ...
    np.testing.assert_allclose(got.edge_gap[sure], expected.edge_gap[sure], **CLOSE)
    whole = ~open_ended
    np.testing.assert_array_equal(got.in_set[whole], expected.in_set[whole])
    for b, column in zip((0.0, 0.5, 0.75), got.log_flat_mass.T, strict=True):
        reference = expected.log_flat_mass[:, (0.0, 0.5, 0.75).index(b)]
        np.testing.assert_allclose(
            (column - b * got.log_set_mass)[whole],
            (reference - b * expected.log_set_mass)[whole],
            **CLOSE,
        )
    relative = got.logprob - got.log_set_mass
    np.testing.assert_allclose(
        relative[whole], (expected.logprob - expected.log_set_mass)[whole], **CLOSE
    )
    # ... and what depends on the rest is a bound.
    listed = own > ranked[:, length - 1]
    np.testing.assert_array_equal(got.rank[listed], expected.rank[listed])
    assert (got.rank >= expected.rank).all()
    assert (got.rank <= expected.rank + np.maximum(0, expected.ties)).all()
    assert (got.ties <= expected.ties).all()
    assert (got.edge_gap <= expected.edge_gap + 1e-9).all()
    assert (got.tail_mass >= expected.tail_mass * (1 - 1e-9)).all()
    assert (got.mass_above <= expected.mass_above + 1e-9).all()
    assert (got.logprob <= expected.logprob + 1e-9).all()
    assert (got.max_logprob <= expected.max_logprob + 1e-9).all()
    assert (got.entropy >= expected.entropy - 1e-9).all()
    if temperature == 1:
        for name in ("logprob", "max_logprob"):
            np.testing.assert_allclose(getattr(got, name), getattr(expected, name), **CLOSE)
        np.testing.assert_allclose(got.mass_above[listed], expected.mass_above[listed], **CLOSE)
        assert (got.tail_mass <= expected.tail_mass + 2 * SLACK)[listed].all()


@settings(deadline=None, max_examples=60)
@cases
def test_honest_tokens_lie_inside_and_bets_stay_fair(
    seed, vocab, length, temperature, top_k, top_p, min_p, engine, ties
):
    """For each token of the support the gap is 0, and each e-process factor has a mean of at most
    1.
    """
    spec = spec_of(
        engine=engine, temperature=temperature, top_k=min(top_k, length), top_p=top_p, min_p=min_p
    )
    row = random_logits(seed, 1, vocab, ties=ties)[0]
    kept = np.flatnonzero(support_mask(row, spec))
    got = scored(np.tile(row, (len(kept), 1)), kept, spec, length=length)
    np.testing.assert_array_equal(got.edge_gap, 0.0)
    p = np.exp((row[kept] - row.max()) / temperature)
    p /= p.sum()
    for b, normaliser in zip((0.0, 0.5, 0.75), got.log_flat_mass.T, strict=True):
        log_p = got.logprob - got.log_set_mass
        factor = np.exp((b - 1) * log_p - (normaliser - b * got.log_set_mass))
        assert (p * np.where(got.in_set, factor, 1.0)).sum() <= 1 + 1e-9
    for tail in got.tail_mass:  # super-uniform
        assert p[got.tail_mass <= tail].sum() <= tail + 1e-9


def test_fp32_log_probs_do_not_understate_the_tail():
    rng = np.random.default_rng(0)
    logits = (rng.normal(size=(400, 5000)) * 5 + 20).astype(np.float32)
    targets = np.argsort(-logits, axis=-1)[np.arange(400), np.arange(400) % 30]
    exact = logits.astype(np.float64)
    expected = reference_stats(exact, targets, spec_of())
    # log_softmax in fp32, as vLLM computes it
    shifted = logits - logits.max(-1, keepdims=True)
    rounded = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True, dtype=np.float32))

    class Rounded(FakeBackend):
        def lists(self, sequences, starts):
            lists = positions_of(exact, targets, self.n_logprobs)
            return [[{i: (float(rounded[n, i]), r) for i, (_, r) in position.items()}
                     for n, position in enumerate(lists)]]  # fmt: skip

    scorer = VLLMScorer(Rounded(20), "fake", vocab_size=5000)
    (got,) = scorer.score([Encoded((0,), tuple(targets.tolist()), False)], spec_of())
    assert (got.tail_mass >= expected.tail_mass * (1 - 1e-5)).all()
    np.testing.assert_allclose(got.edge_gap, expected.edge_gap, atol=1e-5)


def test_minus_infinity_is_handled_and_nan_is_refused():
    logits = np.zeros((2, 40))
    logits[:, 20:] = -np.inf
    logits[0, 3] = 2.0
    got = scored(logits, [30, 3], spec_of())
    assert got.finite
    assert got.logprob[0] == -np.inf
    assert got.edge_gap[0] == np.inf
    assert got.tail_mass[0] == 0
    with np.errstate(invalid="ignore"):
        assert not scored(np.full((1, 40), np.nan), [3], spec_of()).finite


def test_list_that_ends_in_minus_infinity():
    logits = np.full((1, 40), -np.inf)
    logits[0, :3] = [1.0, 0.0, -1.0]
    for temperature in (0.5, 1.0, 2.0):
        got = scored(logits, [1], spec_of(temperature=temperature, top_p=0.9))
        expected = reference_stats(logits, np.array([1]), spec_of(temperature=temperature))
        assert got.finite
        assert got.edge_gap[0] == 0
        np.testing.assert_allclose(got.logprob, expected.logprob, atol=1e-4)


def test_full_vocabulary_list_is_exact():
    logits = random_logits(3, 8, 8, ties=False)
    targets = np.arange(8)
    for temperature in (0.5, 1.0, 2.0):
        spec = spec_of(temperature=temperature, top_k=8)
        got, expected = scored(logits, targets, spec), reference_stats(logits, targets, spec)
        for name in ("logprob", "tail_mass", "mass_above", "edge_gap"):
            np.testing.assert_allclose(
                getattr(got, name), getattr(expected, name), atol=1e-8, err_msg=name
            )


def test_margin_widens_top_p_as_in_the_reference_scorer():
    logits = np.log([[0.5, 0.3, 0.15, 0.04, 0.01]])
    spec = spec_of(top_k=4, top_p=0.78)
    assert scored(logits, [2], spec, length=5).edge_gap[0] == pytest.approx(np.log(2))
    assert scored(logits, [2], spec, length=5, mass_margin=0.05).edge_gap[0] == 0


def test_engines_differ_in_how_top_p_counts():
    logits = np.log([[0.5, 0.2, 0.16, 0.1, 0.04]])
    order = {"top_k": 4, "top_p": 0.75, "min_p": 0.3}
    # transformers: 0.75 of the top four's 0.96 is 0.72 > 0.5 + 0.2; vllm drops 0.1 before counting.
    for engine, gap in (("transformers", 0.0), ("vllm", np.log(0.2 / 0.16))):
        spec = spec_of(engine=engine, **order)
        got = scored(logits, [2], spec, length=5).edge_gap[0]
        assert got == pytest.approx(reference_stats(logits, np.array([2]), spec).edge_gap[0])
        assert got == pytest.approx(gap)


@pytest.mark.slow
def test_honest_work_passes_and_random_tokens_do_not():
    spec = spec_of(temperature=0.7, top_k=20)
    rejected = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        logits = rng.normal(size=(60, 2000)) * 3
        kept = support_mask(logits, spec)
        p = np.where(kept, np.exp((logits - logits.max(-1, keepdims=True)) / 0.7), 0)
        p /= p.sum(-1, keepdims=True)
        honest = [rng.choice(2000, p=row) for row in p]
        rejected += weigh(scored(logits, honest, spec, length=20), FLOAT32, spec).p_value < 1e-3
        noise = scored(logits, rng.integers(0, 2000, 60), spec, length=20)
        assert weigh(noise, FLOAT32, spec).p_value < 1e-6
    assert rejected == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"top_k": 0}, "top_k"),
        ({"top_k": 9}, "top_k"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"engine": "sglang", "top_p": 0.9}, "top_p"),
    ],
)
def test_samplers_that_a_list_cannot_decide_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        scored(np.zeros((1, 40)), [0], spec_of(**changes))


def small_scorer(n_logprobs=8):
    _, tokenizer = policy()
    return VLLMScorer(FakeBackend(n_logprobs), "fake", vocab_size=len(tokenizer), window=256)


@pytest.mark.parametrize(
    ("changes", "words"), [({"top_k": 9}, "top_k"), ({"repetition_penalty": 1.1}, "penalty")]
)
def test_unsupported_sampler_fails_at_construction(changes, words):
    """Not in the middle of training, as an abstention for everyone."""
    with pytest.raises(ValueError, match=words):
        LogProbBoundVerifier(
            tokenizer=policy()[1], scorer=small_scorer(), sampling=spec_of(**changes)
        )


def test_scorer_replaces_the_model():
    _, tokenizer = policy()
    scorer = small_scorer()
    for verifier in (
        LogProbBoundVerifier(tokenizer=tokenizer, scorer=scorer, sampling=spec_of()),
        LogProbBoundVerifier(None, tokenizer, scorer=scorer, sampling=spec_of()),
    ):
        assert verifier.scorer is scorer
    with pytest.raises(TypeError, match="tokenizer: expected"):
        LogProbBoundVerifier(scorer=scorer, sampling=spec_of())
    with pytest.raises(ValueError, match="expected exactly one of them, got neither"):
        LogProbBoundVerifier(tokenizer=tokenizer, sampling=spec_of())


def test_a_scorer_without_check_supports_every_sampler():
    class Simple:
        vocab_size, window = 1024, None
        identity = score = None

    spec = spec_of(top_k=0, repetition_penalty=1.3)
    scorer = Simple()
    verifier = LogProbBoundVerifier(tokenizer=policy()[1], scorer=scorer, sampling=spec)
    assert verifier.scorer is scorer


def test_arguments_are_checked(tmp_path):
    with pytest.raises(ValueError, match="n_logprobs"):
        VLLMScorer(FakeBackend(9), "fake", vocab_size=8)
    with pytest.raises(ValueError, match="window"):
        VLLMScorer(FakeBackend(2), "fake", vocab_size=8, window=1)
    with pytest.raises(ValueError, match="base_url"):
        VLLMScorer.server("localhost:8000", "m", vocab_size=50)
    with pytest.raises(ValueError, match="vocab_size"):
        VLLMScorer.server("http://localhost:8000/v1", "m")
    with pytest.raises(ValueError, match="config"):
        VLLMScorer.server("http://localhost:8000/v1", "m", config=tmp_path)
    with pytest.raises(ValueError, match="concurrency"):
        VLLMScorer.server("http://localhost:8000/v1", "m", vocab_size=50, concurrency=0)
    numbers = {"text_config": {"vocab_size": 77, "max_position_embeddings": 99}}
    (tmp_path / "config.json").write_text(json.dumps(numbers))
    scorer = VLLMScorer.server("http://localhost:8000/v1", "m", config=tmp_path, dtype="float16")
    assert (scorer.vocab_size, scorer.window) == (77, 99)
    assert scorer.identity() == {"engine": "vllm", "architecture": "m", "dtype": "float16"}


def test_overlong_sequence_is_refused_before_sending():
    backend = FakeBackend(3, np.zeros((2, 9)))
    scorer = VLLMScorer(backend, "fake", vocab_size=9, window=2)
    with pytest.raises(ValueError, match=r"sequences\[0\].*window = 2"):
        scorer.score([Encoded((0,), (1, 2), False)], spec_of(top_k=2))
    assert backend.asked == []


@pytest.mark.parametrize(
    "position",
    [
        {5: (-1.0, 1), 6: (-2.0, 2), 7: (-3.0, 3)},  # the token is missing
        {4: (-1.0, 1), 6: (-2.0, 2)},  # too short
        {4: (3.0, 1), 6: (2.0, 2), 7: (1.0, 3)},  # logits, not log-probs
    ],
)
def test_inconsistent_answers_are_detected(position):
    with pytest.raises(TopListError):
        TopList.of([position], [4], length=3, vocab_size=9)


def test_unlisted_token_does_not_change_the_set():
    """K must be decided by the prefix; a token tied with the last one may not join by being there.

    If it counted, an honest token's bet would have a mean above 1.
    """
    row = np.array([2.0, 1.0, 1.0, 1.0, 0.0, -1.0])
    got = scored(np.tile(row, (4, 1)), [0, 1, 2, 3], spec_of(top_k=2), length=2)
    assert got.in_set.tolist() == [True, True, False, False]
    assert np.ptp(got.log_set_mass) == 0
    np.testing.assert_array_equal(got.edge_gap, 0.0)
