"""Margins under a shared seed: exact where claimed, and never against an honest node.

Two requirements are balanced: a token that was not drawn must have a margin (or a forger goes
free), and neither the verifier's rounding nor a node's may give the drawn token a large margin (or
honest work is rejected).
"""

import math
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.logprob.kernels.head_stats import head_stats
from grpo_guard.logprob.kernels.scores import Head
from grpo_guard.logprob.noise import gumbel
from grpo_guard.logprob.replay.candidates import MOST_CANDIDATES, candidates_for
from grpo_guard.logprob.replay.margins import (
    EDGE_MARGIN,
    replay_margins,
)
from tests.logprob.replay_rows import drawn_from, logits_of, margins_of, replay_of, spec_of

FAMILIES = ("grpo-guard", "vllm")
SPECS = st.builds(
    SamplingSpec,
    st.sampled_from(["transformers", "vllm"]),
    st.sampled_from([0.4, 1.0, 1.6]),
    st.sampled_from([0, 1, 4, 30, 127, 128, 140, 2000]),
    st.sampled_from([0.3, 0.8, 0.95, 1.0]),
    st.sampled_from([0.0, 0.03, 0.3]),
)


# Margins against the obvious implementation.


def surely_kept(z, spec, edge_logits, edge_mass):
    """Tokens that count as competitors in one row of scores, float64 [V] -> boolean [V].

    A token is judged as if all within ``edge_logits`` of it ranked above it. Tokens beyond the K
    likeliest are unknown: neither they nor a token that they might come close to compete.
    """
    if not spec.truncates:  # nothing can be overlooked then
        return z > -np.inf
    order = np.argsort(-z, kind="stable")
    most = min(candidates_for(spec), len(z))
    seen = order[:most]
    near = edge_logits / spec.temperature
    p = np.exp(z - z.max())
    p /= p.sum()
    min_p = z.max() + math.log(spec.min_p) + near if spec.min_p > 0 else -np.inf
    renormalised = spec.top_k > 0 or (spec.engine == "vllm" and spec.min_p > 0)
    eligible = seen[: spec.top_k or None]
    if spec.engine == "vllm":
        eligible = eligible[z[eligible] >= min_p]
    mass = p[eligible].sum() if renormalised else 1.0
    kept = np.zeros(len(z), dtype=bool)
    for token in seen:
        close = seen[z[seen] >= z[token] - near]
        hidden = len(close) == most < len(z)
        sure = z[token] > -np.inf and z[token] >= min_p
        if spec.top_k > 0:
            sure &= len(close) <= spec.top_k and not hidden
        if spec.top_p < 1:
            odds = spec.top_p / (1 - spec.top_p) * math.exp(-near)
            limit = min(spec.top_p - edge_mass, odds / (1 + odds))
            sure &= p[close].sum() - p[token] < limit * mass and not hidden
        kept[token] = sure
    return kept


def reference_margin(z, target, noise, spec, edge_logits, edge_mass):
    if z[target] == -np.inf:
        return np.inf
    kept = surely_kept(z, spec, edge_logits, edge_mass)
    kept[target] = False
    best = (z + noise)[kept].max(initial=-np.inf)
    return max(0.0, best - z[target] - noise[target]) * spec.temperature


@pytest.mark.slow
@settings(deadline=None, max_examples=120)
@given(
    seed=st.integers(0, 10**6),
    vocab=st.integers(2, 400),
    spread=st.sampled_from([0.3, 2.0, 8.0]),
    closed=st.sampled_from([0.0, 0.5]),
    spec=SPECS,
    family=st.sampled_from(FAMILIES),
)
def test_margins_match_brute_force_over_the_vocabulary(seed, vocab, spread, closed, spec, family):
    logits = logits_of(seed, 6, vocab, spread)
    shut = torch.rand(logits.shape, generator=torch.Generator().manual_seed(seed)) < closed
    shut[:, 0] = False
    logits = logits.masked_fill(shut, -torch.inf)
    targets = torch.randint(0, vocab, (6,), generator=torch.Generator().manual_seed(seed))
    targets[:2] = logits[:2].argmax(-1)
    replay = replay_of(6, seed, family=family)
    margin, _ = margins_of(logits, targets, spec, replay)
    noise = gumbel(
        replay.seeds[:, None], replay.positions[:, None], torch.arange(vocab)[None], family
    )
    z = logits.double().numpy() / spec.temperature
    for row in range(6):
        arguments = z[row], int(targets[row]), noise[row].double().numpy(), spec
        # A token within 1e-5 of an edge may fall on either side of it.
        edges = product((0.25 - 1e-5, 0.25 + 1e-5), (0.02 - 1e-5, 0.02 + 1e-5))
        expected = [reference_margin(*arguments, *edge) for edge in edges]
        assert any(float(margin[row]) == pytest.approx(e, abs=1e-4) for e in expected)


def test_replay_names_the_token_that_beats_the_target():
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]]).expand(200, -1)
    replay = replay_of(200)
    drawn = drawn_from(logits, spec_of(), replay)
    for target in range(4):
        targets = torch.full((200,), target)
        margin, named = margins_of(logits, targets, spec_of(), replay)
        assert torch.equal(named, drawn)
        assert torch.equal(margin > 0, drawn != target)


def test_margins_are_in_raw_logits():
    """Twice the logits at twice the temperature: the same scores, margins twice as wide."""
    logits, targets, replay = logits_of(0, 50, 40, 2.0), torch.zeros(50).long(), replay_of(50)
    once, _ = margins_of(logits, targets, spec_of(), replay)
    twice, _ = margins_of(2 * logits, targets, spec_of(temperature=2.0), replay)
    assert (once > 0).any()
    torch.testing.assert_close(twice, 2 * once, atol=1e-4, rtol=0)


# Never against honest nodes.


@settings(deadline=None, max_examples=150)
@given(
    seed=st.integers(0, 10**6),
    vocab=st.integers(2, 1500),
    spread=st.sampled_from([0.05, 1.0, 8.0]),
    whole=st.booleans(),
    spec=SPECS,
    family=st.sampled_from(FAMILIES),
)
def test_drawn_token_has_no_margin_on_the_same_scores(seed, vocab, spread, whole, spec, family):
    logits = logits_of(seed, 8, vocab, spread)
    logits = logits.round() if whole else logits
    scores, replay = logits / spec.temperature, replay_of(8, seed, family=family)
    drawn = drawn_from(logits, spec, replay)
    values, tokens = scores.topk(min(candidates_for(spec), vocab), -1)
    own = scores.gather(-1, drawn[:, None])[:, 0]
    margin, named = replay_margins(
        values, tokens, own, drawn, scores.logsumexp(-1), replay, spec, vocab_size=vocab
    )
    assert (margin == 0).all()
    assert torch.equal(named, drawn)


def test_drawn_token_does_not_lose_to_itself_by_rounding():
    """Its score alone and as a candidate may differ in the last bit; that is not a mismatch."""
    hidden, head = logits_of(0, 500, 16, 1.0), Head(logits_of(1, 100, 16, 1.0))
    for temperature in (0.3, 0.7, 1.3):
        spec, replay = spec_of(temperature=temperature), replay_of(500)
        drawn = drawn_from(hidden @ head.weight.T, spec, replay)
        margin = head_stats(hidden, head, drawn, spec, replay=replay).margins.margin
        assert (margin == 0).all()


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(
    seed=st.integers(0, 10**6),
    vocab=st.integers(2, 600),
    spread=st.sampled_from([0.05, 1.0, 4.0]),
    off=st.sampled_from([1e-4, 5e-3]),
    spec=SPECS,
    family=st.sampled_from(FAMILIES),
)
def test_score_error_d_gives_honest_margins_of_at_most_2_d(seed, vocab, spread, off, spec, family):
    """The node draws y on scores that are off by up to d each. So every token c that it keeps has
    score + noise below y's on its side, and above by at most 2 d on ours: in raw logits, 2 d T.

    It does keep all that compete: 2 d is less than the edge's 0.25 / T, and probabilities are off
    by a factor of at most exp(2 d), the two sides of the test for top-p together by exp(4 d), which
    for d <= 0.005 is less than 1 / (1 - 0.02). fp32 adds the last 1e-4.
    """
    logits = logits_of(seed, 8, vocab, spread)
    generator = torch.Generator().manual_seed(seed + 1)
    drift = (2 * torch.rand(logits.shape, generator=generator) - 1) * off * spec.temperature
    replay = replay_of(8, seed, family=family)
    drawn = drawn_from(logits + drift, spec, replay)
    margin, _ = margins_of(logits, drawn, spec, replay)
    assert (margin <= 2 * off * spec.temperature + 1e-4).all()


def assert_only_these_compete(scores, spec, expected):
    """Whatever ids are claimed, the replay names only these, and each of them now and then."""
    logits = torch.tensor(scores).expand(2000, -1) * spec.temperature
    vocab, replay = logits.shape[-1], replay_of(2000)
    named = set()
    for target in (vocab - 1, vocab - 2):
        targets = torch.full((2000,), target)
        margin, drawn = margins_of(logits, targets, spec, replay)
        named |= set(drawn[margin > EDGE_MARGIN].tolist())
    assert named == expected


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_token_near_the_edge_of_top_k_does_not_compete(temperature):
    spec = spec_of(temperature=temperature, top_k=3)
    for fourth, expected in ((0.8, {0, 1}), (0.7, {0, 1, 2})):
        logits = [4.0, 3.0, 1.0, fourth, -3.0, -3.0]
        assert_only_these_compete([z / temperature for z in logits], spec, expected)


def test_a_token_near_the_edge_of_min_p_does_not_compete():
    edge = math.log(0.1)
    spec = spec_of(min_p=0.1)
    assert_only_these_compete([0.0, edge + 0.3, edge + 0.2, edge - 0.2, -9.0, -9.0], spec, {0, 1})


def test_a_token_near_the_edge_of_the_nucleus_does_not_compete():
    p = [0.5, 0.25, 0.145, 0.09, 0.01, 0.005]
    scores = [math.log(x) for x in p]
    # The third token has 0.75 above it, the fourth 0.895.
    assert_only_these_compete(scores, spec_of(top_p=0.9), {0, 1, 2})
    assert_only_these_compete(scores, spec_of(top_p=0.92), {0, 1, 2, 3})


@pytest.mark.parametrize("top_k", [MOST_CANDIDATES - 1, MOST_CANDIDATES, MOST_CANDIDATES + 20])
def test_ties_beyond_the_candidates_do_not_compete(top_k):
    """Drift decides which of 400 near ties a node's top-k keeps, whatever the verifier sees."""
    logits = torch.zeros(300, 402)
    logits[:, 400:] = -5.0
    targets, spec = torch.full((300,), 401), spec_of(top_k=top_k)
    margin, _ = margins_of(logits, targets, spec, replay_of(300))
    assert (margin <= EDGE_MARGIN).all()


def test_ambiguous_min_p_edge_uses_the_smaller_nucleus():
    """vLLM applies top-p after min-p. Eight tokens lie on the edge of min-p: a node may renormalise
    without them, and its nucleus then ends before the third token."""
    edge = math.log(0.2)
    scores = [0.0, -0.7, -1.1] + [edge + 0.01] * 8 + [-9.0, -9.0]
    spec = spec_of(engine="vllm", min_p=0.2, top_p=0.75)
    node = torch.tensor(scores)
    node[3:11] -= 0.02
    mask = drawn_from(node.expand(4000, -1), spec, replay_of(4000)).unique().tolist()
    assert mask == [0, 1]
    assert_only_these_compete(scores, spec, {0, 1})


def test_target_at_minus_infinity_has_an_infinite_margin():
    logits = torch.tensor([[0.0, -torch.inf, 0.0], [-torch.inf, -torch.inf, 1.0]])
    for spec in (spec_of(), spec_of(top_k=1), spec_of(top_p=0.5), spec_of(min_p=0.5)):
        margin, _ = margins_of(logits, torch.tensor([1, 1]), spec, replay_of(2))
        assert (margin == torch.inf).all()


def test_token_without_competitors_has_no_margin():
    logits = torch.tensor([[0.0, -torch.inf, -torch.inf]])
    margin, drawn = margins_of(logits, torch.tensor([0]), spec_of(), replay_of(1))
    assert (margin.item(), drawn.item()) == (0.0, 0)


# Without truncation.


@pytest.mark.slow
def test_without_truncation_every_token_of_the_vocabulary_competes():
    """At T = 1 a few percent of draws lie beyond the likeliest tokens; looking only at these, an
    attacker could choose there among several tokens that all seem drawn."""
    hidden, head = logits_of(0, 300, 16, 1.0), Head(logits_of(1, 9000, 16, 0.7))
    logits, spec, replay = hidden @ head.weight.T, spec_of(), replay_of(300)
    drawn = drawn_from(logits, spec, replay)
    assert (torch.argsort(-logits).argsort().gather(-1, drawn[:, None]) > MOST_CANDIDATES).any()
    assert (head_stats(hidden, head, drawn, spec, replay=replay).margins.margin == 0).all()
    targets = torch.randint(0, 9000, (300,), generator=torch.Generator().manual_seed(2))
    noise = gumbel(replay.seeds[:, None], replay.positions[:, None], torch.arange(9000)[None])
    perturbed = logits + noise
    expected = perturbed.amax(-1) - perturbed.gather(-1, targets[:, None])[:, 0]
    margins = head_stats(hidden, head, targets, spec, replay=replay).margins
    torch.testing.assert_close(margins.margin, expected, atol=1e-4, rtol=0)
    assert torch.equal(margins.drawn, drawn)


def test_token_at_the_exact_edge_is_neither_match_nor_evidence():
    """Otherwise tokens at the edge could be chosen freely, at every such position."""
    logits = torch.tensor([[2.0, 1.0, 0.9]]).expand(400, -1)
    spec, replay = spec_of(top_k=2), replay_of(400)
    targets = torch.full((400,), 2)
    margin, _ = margins_of(logits, targets, spec, replay)
    assert (margin > 0).all()
    free, _ = margins_of(logits, targets, spec_of(top_k=3), replay)
    wins = free == 0
    assert wins.any()
    torch.testing.assert_close(margin[wins], torch.full_like(margin[wins], EDGE_MARGIN))
