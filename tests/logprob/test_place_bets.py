"""Bets at announced places: fair to honest draws under truncation and drift, costly to poison."""

import math
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_guard import Completion, LogProbBoundVerifier
from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.node_evidence import NodeEvidence
from grpo_guard.logprob.place_bets import COLUMNS, Announced, PlaceBets, log_e_of, place_bets
from grpo_guard.logprob.profile import BITWISE, FLOAT32, TEXT
from grpo_guard.logprob.scan import DRIFT_SHARE
from grpo_guard.logprob.shares import Places
from grpo_guard.logprob.stats import TokenStats
from grpo_guard.logprob.verifier import Scored
from tests.logprob.bundled_policy import SPEC, honest, policy

NEVER = 1e-250
UNIFORM = [1 / 16] * 16  # all of them tied


def statistics(p):
    """Make statistics of each possible token: [n] probabilities -> n tokens."""
    p = np.asarray(p)
    values = {
        "logprob": np.log(p),
        "tail_mass": np.array([p[p <= x].sum() for x in p]),
        "ties": np.array([(p == x).sum() - 1 for x in p]),
        "log_flat_mass": np.zeros((len(p), 3)),
    }
    columns = {f.name: values.get(f.name, np.zeros(len(p))) for f in fields(TokenStats)}
    return TokenStats(**columns | {"replay_margin": None, "replay_token": None})


def factors(p, profile, kind=Announced.RESULT):
    """Each token's factor in each column, [n, COLUMNS]."""
    encoded = Encoded((1,), tuple(range(len(p))), False)
    bets = place_bets(encoded, [kind] * len(p), statistics(p), profile, 1.0)
    return np.exp(bets.log_factors)


distributions = (
    st.lists(st.integers(1, 10**6) | st.just(7), min_size=1, max_size=40)
    .map(np.array)
    .map(lambda counts: counts / counts.sum())
)


@given(distributions | st.just(np.array(UNIFORM)))
def test_honest_draws_win_nothing_on_average(p):
    assert (p @ factors(p, FLOAT32)).max() <= 1 + 1e-9


@pytest.mark.slow
@given(distributions)
def test_bets_are_exact_without_drift(p):
    exact = replace(BITWISE, least_tail=1e-300)
    assert p @ factors(p, exact) == pytest.approx(np.ones(len(COLUMNS)), abs=2e-3)


@given(distributions, st.integers(1, 40))
def test_truncating_sampler_wins_nothing_on_average(p, kept):
    p = np.sort(p)[::-1]
    kept = min(kept, len(p))
    sampler = np.where(np.arange(len(p)) < kept, p, 0) / p[:kept].sum()
    assert (sampler @ factors(p, FLOAT32)).max() <= 1 + 1e-9


@given(distributions, st.floats(0, 20))
def test_drift_within_the_allowance_wins_nothing_on_average(p, tau):
    """The worst drift: the least likely tokens come as often as it allows."""
    profile = replace(FLOAT32, tau=tau)
    ordered = np.sort(p)
    reached = np.minimum(np.cumsum(ordered) * math.exp(DRIFT_SHARE * tau), 1.0)
    sampler = np.diff(np.concatenate([[0.0], reached]))
    assert (sampler @ factors(ordered, profile)).max() <= 1 + 1e-9


def test_each_kind_of_place_has_its_own_bets():
    won = factors([0.001, 0.999], FLOAT32, Announced.IMPORT)[0]
    for (kind, _, _), factor in zip(COLUMNS, won, strict=True):
        assert (factor > 1.5) if kind is Announced.IMPORT else factor == 1


def test_text_without_ids_is_not_bet_on():
    p, encoded = [0.001, 0.999], Encoded((1,), (0, 1), True)
    bets = place_bets(encoded, [Announced.RESULT] * 2, statistics(p), TEXT, 1.0)
    assert bets.places == ()
    assert log_e_of([bets]) == pytest.approx(np.zeros(len(COLUMNS)))


def one_bet(prefix, log_factor):
    return PlaceBets((prefix,), (0,), np.full((1, len(COLUMNS)), log_factor))


def test_draws_with_the_same_prefix_are_averaged_and_others_multiplied():
    same = log_e_of([one_bet(b"a", math.log(4)), one_bet(b"a", math.log(2))])
    assert np.exp(same) == pytest.approx(3)
    apart = log_e_of([one_bet(b"a", math.log(4)), one_bet(b"b", math.log(2))])
    assert np.exp(apart) == pytest.approx(8)


def test_equal_answers_to_one_prompt_count_once():
    check, completion = verifier(), honest(4)[0]
    (encoded,) = [check.encode(completion)]
    bets = bets_on(check, [completion] * 5)
    assert bets[0].prefixes
    assert len(set(bets[0].prefixes)) == len(bets[0].prefixes)
    assert log_e_of(bets) == pytest.approx(log_e_of(bets[:1]))
    assert encoded.completion_ids


def verifier(**options):
    return LogProbBoundVerifier(*policy(), sampling=SPEC, alpha=NEVER, **options)


def bets_on(check, completions):
    scored = check._scored(completions)[1]
    return [check.nodes.bets(scored[i]) for i in range(len(completions))]


def sends(text, odd, prompt, node="eve"):
    """A completion of which the policy is confident, except for the slightly unlikely ``odd``.

    These numbers replace the policy's own, so that only the places decide.
    """
    ids = tuple(policy()[1].encode(text, add_special_tokens=False))
    unlikely = np.array([policy()[1].decode([i]).strip() == odd for i in ids])
    assert unlikely.sum() == 1
    values = {
        "logprob": np.where(unlikely, math.log(0.05), math.log(0.97)),
        "max_logprob": np.full(len(ids), math.log(0.7)),
        "tail_mass": np.where(unlikely, 0.08, 1.0),
        "log_flat_mass": np.zeros((len(ids), 3)),
        "in_set": np.ones(len(ids), bool),
    }
    columns = {f.name: values.get(f.name, np.zeros(len(ids))) for f in fields(TokenStats)}
    stats = TokenStats(**columns | {"replay_margin": None, "replay_token": None})
    encoded = Encoded((prompt,), ids, False)
    return Completion(f"{prompt}?", text, node=node), Scored(encoded, stats, FLOAT32)


def convicted_after(text, odd, rounds=40):
    """Return the round that convicts the node, and the findings; (None, []) if none does."""
    check = verifier()
    nodes = NodeEvidence("n", SPEC, 1e-3, None, Places(policy()[1]))
    for round in range(rounds):
        sent = [sends(text, odd, 2 * round + i) for i in range(2)]
        scored = {i: s for i, (_, s) in enumerate(sent)}
        weighed = {i: check.weigh(s.encoded, s.stats, s.profile) for i, s in scored.items()}
        if found := nodes.convicted([c for c, _ in sent], scored, weighed):
            return round, found
    return None, {}


def test_slightly_unlikely_digits_after_equals_signs_convict():
    after, found = convicted_after("<think>2 + 2 = 5 cows.</think>", "5")
    assert after is not None
    assert after > 2  # a single batch is not enough
    assert set(found) == {0, 1}
    for finding, (start, end) in found.values():
        assert finding.kind == "improbable_places"
        assert "'eve'" in finding.message
        ids = policy()[1].encode("<think>2 + 2 = 5 cows.</think>", add_special_tokens=False)
        assert policy()[1].decode(ids[start:end]).strip() == "5"


def test_same_digits_at_unannounced_places_do_not_convict():
    assert convicted_after("<think>Tom has 5 cows and 2 + 2 cats.</think>", "5")[0] is None
