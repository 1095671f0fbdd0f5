"""The bets are fair for honest nodes: exact expectations, not simulations."""

from itertools import product
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_guard.nodes.bets import Bets, Tally, Tolerance

RATES = st.floats(0, 1)


def binomial(k, n, p):
    return comb(n, k) * p**k * (1 - p) ** (n - k)


def mean_of(bets, node, peers, rate, rates, held=lambda k: k):
    """E[exp(sum of scores)] over independent rejections, shape [G]."""
    total = 0.0
    for k, *ks in product(range(node + 1), *(range(n + 1) for n in peers)):
        weight = binomial(k, node, rate)
        for kj, n, p in zip(ks, peers, rates, strict=True):
            weight *= binomial(kj, n, p)
        scores = sum(
            bets.score(Tally(node, k, held(k)), Tally(n, kj, kj), len(peers))
            for kj, n in zip(ks, peers, strict=True)
        )
        total = total + weight * np.exp(scores)
    return total


BETS = {(r, o): Bets(Tolerance(r, o)) for r in (1.0, 1.5, 3.0) for o in (0.001, 0.01, 0.05)}


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    bets=st.sampled_from(sorted(BETS)),
    node=st.integers(1, 6),
    peers=st.lists(st.tuples(st.integers(0, 6), RATES), min_size=1, max_size=3),
    below=RATES,
)
def test_honest_nodes_do_not_win_on_average(bets, node, peers, below):
    sizes, rates = [n for n, _ in peers], [p for _, p in peers]
    if not sum(sizes):
        return
    of_peers = sum(n * p for n, p in peers) / sum(sizes)
    rate = below * min(1.0, bets[0] * of_peers + bets[1])
    assert (mean_of(BETS[bets], node, sizes, rate, rates) <= 1 + 1e-9).all()


def test_bet_is_fair_at_the_edge_of_the_tolerance():
    bets = BETS[1.5, 0.01]
    for p in (0.0, 0.001, 0.01, 0.1, 0.5):
        means = mean_of(bets, 12, [12, 12], min(1.0, 1.5 * p + 0.01), [p, p])
        assert (means <= 1 + 1e-9).all()
        assert means.max() > 0.01  # and not because it is worth nothing


def test_unequal_rates_within_a_round_do_not_help():
    bets = BETS[1.5, 0.01]
    # Two prompts: on one the node and its peers are always rejected, on the other never.
    node, peer = Tally(10, 5, 5), Tally(10, 5, 5)
    assert (np.exp(2 * bets.score(node, peer, 2)) <= 1 + 1e-9).all()


def test_discounting_rejections_keeps_the_bet_fair():
    means = mean_of(BETS[1.0, 0.01], 6, [6], 0.3, [0.29], held=lambda k: min(k, 2))
    assert (means <= 1 + 1e-9).all()


def test_node_beyond_the_tolerance_wins():
    assert mean_of(BETS[1.5, 0.01], 12, [12, 12], 0.2, [0.0, 0.0]).max() > 1.2


def test_node_that_sent_nothing_has_a_bet_of_1():
    bets = BETS[1.5, 0.01]
    nothing, work = Tally(0, 0, 0), Tally(5, 1, 1)
    assert not bets.score(nothing, work, 1).any()
    assert not bets.score(work, nothing, 1).any()


@pytest.mark.parametrize(
    ("ratio", "offset"), [(0.9, 0.01), (1.5, 0.0), (1.5, 0.5), (float("nan"), 0)]
)
def test_impossible_tolerances_are_refused(ratio, offset):
    with pytest.raises(ValueError, match="expected a number"):
        Tolerance(ratio, offset)
