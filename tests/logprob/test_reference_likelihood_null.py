"""The parts of the p-value: the null distribution, and what the group and the prompt excuse."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_guard import Completion
from grpo_guard.logprob.reference.group import Usual, peers_of, relative
from grpo_guard.logprob.reference.null import (
    ExponentialTail,
    conformal,
    cusum,
    decay_rate,
    length_free,
)
from grpo_guard.logprob.reference.profile import needed_for, strangeness
from grpo_guard.logprob.reference.reading import quoted

SCORES = st.lists(st.floats(-30, 30), min_size=1, max_size=40)
USUAL = Usual(1.0, 2.0)


# --- null ---


def test_decay_rate_is_the_root_for_scores_with_negative_drift():
    x = np.random.default_rng(0).normal(-0.5, 1.0, 5000)
    assert np.exp(decay_rate(x) * x).mean() == pytest.approx(1.0, abs=1e-6)
    assert decay_rate(x) == pytest.approx(1.0, abs=0.1)  # 2 * 0.5 / 1 for a normal
    for wrong in ([], [0.5, 1.0], [-1.0, -2.0]):
        with pytest.raises(ValueError, match="negative mean"):
            decay_rate(np.array(wrong))


def test_score_does_not_grow_with_length():
    rng = np.random.default_rng(1)
    rate = decay_rate(rng.normal(-0.5, 1.0, 20_000))
    medians = {
        n: np.median(
            [length_free(cusum(rng.normal(-0.5, 1.0, n)).value, n, rate) for _ in range(300)]
        )
        for n in (60, 200, 800)
    }
    assert max(medians.values()) - min(medians.values()) < 0.6  # log(800 / 60) is 2.6


@given(SCORES, st.floats(-40, 40))
def test_conformal_p_value_is_at_least_one_in_n_plus_one(honest, score):
    p = conformal(score, sorted(honest))
    assert p == (1 + sum(h >= score for h in honest)) / (len(honest) + 1)
    assert 1 / (len(honest) + 1) <= p <= 1


def test_conformal_p_value_is_valid():
    rng = np.random.default_rng(2)
    p = np.array([conformal(x[0], sorted(x[1:])) for x in rng.exponential(1, (4000, 50))])
    for alpha in (0.02, 0.05, 0.2):
        assert (p <= alpha).mean() <= alpha + 4 * math.sqrt(alpha / len(p))


def test_needed_for_matches_the_reach_of_conformal():
    for alpha in (0.5, 0.05, 0.01, 1e-3):
        needed = needed_for(alpha)
        assert 1 / (needed + 1) <= alpha * (1 + 1e-9)
        assert 1 / needed > alpha


def test_exponential_tail_is_valid_for_an_exponential_tail():
    rng = np.random.default_rng(3)
    fits = [ExponentialTail.fit(sorted(rng.gumbel(0, 1, 400))) for _ in range(60)]
    share = np.mean([math.exp(-math.exp(-x)) for f in fits for x in [_score_at(f, 1e-3)]])
    assert 1 - share < 1e-3  # a Gumbel has an exponential tail
    assert ExponentialTail.fit(sorted(rng.gumbel(0, 1, 199))) is None


def _score_at(tail, p):
    return tail.start + tail.mean_excess * math.log(tail.share / p)


# --- group ---


@given(st.floats(-20, 20), st.lists(SCORES, max_size=8))
def test_group_excuses_and_never_accuses(score, peers):
    assert relative(score, peers, USUAL) <= score


@given(SCORES)
def test_no_excuse_without_foreign_peers(own):
    assert relative(own[0], [], USUAL) == own[0]
    assert relative(own[0], [[1.0]] * 5, USUAL) == pytest.approx(own[0], abs=1e-9)


def test_wholly_foreign_group_is_excused_and_half_of_it_is_not():
    assert relative(8.0, [[8.0], [7.5], [8.5], [8.2]], USUAL) < 4
    half = [[9.0, 9.0, 9.0, 9.0], [9.0], [1.0], [0.5]]
    assert relative(8.0, half, USUAL) == pytest.approx(8.0, abs=0.5)


def test_peers_are_other_nodes_with_the_same_prompt():
    batch = [
        Completion("a", "x", node="n1", group=1),
        Completion("a", "x", node="n2", group=2),
        Completion("a", "x", node="n1", group=1),
        Completion("b", "x", node="n3", group=1),
        Completion("a", "x"),
        Completion("a", "x"),
        Completion("a", "x", node="n4"),
    ]
    scores = {i: float(i) for i in range(6)}  # the last could not be scored
    found = peers_of(batch, scores)
    assert found[0] == found[2] == [[1.0], [4.0, 5.0]]
    assert found[1] == [[0.0, 2.0], [4.0, 5.0]]
    assert found[3] == []
    assert found[4] == found[5] == [[0.0, 2.0], [1.0]]


def test_anonymous_senders_have_no_more_votes_than_named_ones():
    batch = [Completion("a", "x", node=n) for n in ("n1", "n2", "n3", *[None] * 12)]
    scores = {i: 9.0 if i >= 3 else 1.0 for i in range(len(batch))}
    peers = peers_of(batch, scores)
    assert peers[14] == [[1.0]] * 3
    assert relative(9.0, peers[14], USUAL) == pytest.approx(9.0, abs=0.5)
    # Without names, each completion counts as its own node.
    nameless = [Completion("a", "x") for _ in batch]
    assert len(peers_of(nameless, scores)[0]) == len(batch) - 1


# --- prompt and tokens ---


def test_runs_of_three_words_of_the_prompt_are_quoted_and_shorter_ones_are_not():
    prompt = "Sign with: All hail to the THIEF!"
    text = "So all hail to the thief, to the end"
    offsets = [(m, m + 1) for m in range(len(text))]
    found = quoted(prompt, text, offsets)
    assert text[found.argmax() : len(text) - found[::-1].argmax()] == "all hail to the thief"
    assert not quoted("All hail", "All hail", [(0, 3), (3, 8)]).any()
    assert not quoted(prompt, "", []).any()


def test_strangeness_grows_with_surprise_and_with_doubt_and_is_capped():
    stats = SimpleNamespace(
        logprob=np.array([-1.0, -50.0, -np.inf, 0.0]),
        entropy=np.array([1.0, 1.0, 2.0, 9.0]),
    )
    assert strangeness(stats, 12.0).tolist() == [1.0, 6.5, 7.0, 4.5]
