"""One prompt's e-value is fair for honest nodes, whatever the prompt, luck and peers."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_guard.nodes.same_prompt import BET, log_e_values

rates = st.floats(0.001, 0.95)


def binomial(answers, rate):
    return [
        (k / answers, math.comb(answers, k) * rate**k * (1 - rate) ** (answers - k))
        for k in range(answers + 1)
    ]


def all_alike(_, rate):
    """A model that gets a prompt wrong gets it wrong in every answer."""
    return [(0.0, 1 - rate), (1.0, rate)]


def mean_e(laws, hostile, odds):
    """Exact mean of node 0's e-value over all outcomes, given what hostile peers send."""
    total = 0.0
    for outcome in itertools.product(*laws):
        shares = [share for share, _ in outcome] + hostile
        chance = math.prod(p for _, p in outcome)
        total += chance * math.exp(log_e_values(dict(enumerate(shares)), odds)[0])
    return total


@given(
    rate=rates,
    odds=st.sampled_from([1.0, 1.5, 3.0, 10.0]),
    skill=st.floats(0.0, 1.0),
    law=st.sampled_from([binomial, all_alike]),
    answers=st.lists(st.integers(1, 3), min_size=2, max_size=4),
    hostile=st.lists(st.sampled_from([0.0, 0.3, 1.0]), max_size=2),
)
def test_honest_node_wins_nothing_on_average(rate, odds, skill, law, answers, hostile):
    # Anything up to ``odds`` times the odds of its peers, and fewer than half of them hostile.
    hostile = hostile[: len(answers) - 1]
    if len(answers) + len(hostile) < 3:
        hostile = [0.0]
    own = rate / (1 - rate) * odds**skill
    laws = [law(n, own / (1 + own) if i == 0 else rate) for i, n in enumerate(answers)]
    assert mean_e(laws, hostile, odds) <= 1 + 1e-9


def test_node_worse_than_allowed_wins():
    laws = [binomial(2, 0.5), *[binomial(2, 0.05)] * 3]
    assert mean_e(laws, [], 3.0) > 1.1
    laws = [binomial(2, 0.5), *[binomial(2, 0.25)] * 3]
    assert mean_e(laws, [], 3.0) < 1


@given(st.dictionaries(st.integers(0, 9), st.floats(0, 1), min_size=3), st.floats(1, 100))
def test_e_value_is_bounded_and_finite(shares, odds):
    found = log_e_values(shares, odds)
    assert found.keys() == shares.keys()
    assert all(-math.log(BET) - 1e-9 <= log <= math.log(BET) for log in found.values())


@pytest.mark.parametrize("honest", [2, 3, 4])
def test_threat_peers_that_avoid_the_finding_cannot_frame_a_node(honest):
    laws = [binomial(2, 0.3)] * honest
    minority, half = [0.0] * (honest - 1), [0.0] * honest
    assert mean_e(laws, minority, 1.0) <= 1 + 1e-9
    # The limit: half of all nodes together can.
    assert mean_e(laws, half, 1.0) > 1.01
    assert mean_e(laws, half, 3.0) <= 1


@pytest.mark.parametrize("shares", [{}, {"ann": 1.0}, {"ann": 1.0, "bob": 0.0}])
def test_two_nodes_say_nothing_about_each_other(shares):
    assert log_e_values(shares, 3.0) == {}


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_finding_of_all_or_none_is_no_evidence(share):
    found = log_e_values(dict.fromkeys("abcd", share), 3.0)
    assert found == pytest.approx(dict.fromkeys("abcd", 0.0), abs=1e-12)


def test_number_of_answers_neither_shields_nor_blames():
    # Only shares count: a peer with a hundred clean answers is still one peer.
    some = log_e_values({"ann": 1 / 2, "bob": 0 / 100, "cid": 0.0, "dan": 1 / 100}, 3.0)
    more = log_e_values({"ann": 50 / 100, "bob": 0 / 1, "cid": 0.0, "dan": 0.01}, 3.0)
    assert some == more


def test_thousand_nodes_on_one_prompt_are_compared():
    shares = {i: (i % 17) / 16 for i in range(1_000)}
    found = log_e_values(shares, 3.0)
    assert len(found) == 1_000
    assert found[16] > found[0]
