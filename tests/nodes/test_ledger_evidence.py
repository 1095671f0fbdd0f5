"""Which nodes are found and which are not, round by round."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_guard.nodes.bets import Tally
from grpo_guard.nodes.evidence import MAX_PEERS, WINDOW, Comparison, honest_peers, threshold

NODES = tuple("abcd")


def first_found(rates, rounds, *, seed=0, nodes=NODES, judged=24):
    """First round in which each node is accused; ``rates(round, node)`` are rejection rates."""
    chance = random.Random(seed)
    comparison, found = Comparison(), {}
    for t in range(rounds):
        tallies = {}
        for node in nodes:
            k = sum(chance.random() < rates(t, node) for _ in range(judged))
            tallies[node] = Tally(judged, k, k)
        comparison.add(tallies)
        for node, evidence in comparison.evidence().items():
            if evidence.log_e >= threshold(evidence.others, 1e-3):
                found.setdefault(node, t)
    return found


@pytest.mark.parametrize("seed", range(3))
def test_one_in_twelve_is_found_within_thirty_rounds(seed):
    found = first_found(lambda t, n: 1 / 12 if n == "d" else 0.001, 30, seed=seed)
    assert set(found) == {"d"}


def test_late_turn_is_not_protected_by_a_clean_past():
    found = first_found(lambda t, n: 1 / 6 if n == "d" and t >= 150 else 0.001, 180)
    assert set(found) == {"d"}


def test_poison_in_the_first_rounds_only_is_found():
    found = first_found(lambda t, n: 1 / 3 if n == "d" and t < 5 else 0.001, 10)
    assert set(found) == {"d"}


@pytest.mark.parametrize("rate", [0.0, 0.001, 0.03, 0.3, 1.0])
def test_rejections_of_all_nodes_accuse_none(rate):
    assert not first_found(lambda t, n: rate, 100)


def test_weaker_node_within_the_tolerance_is_not_accused():
    assert not first_found(lambda t, n: {"d": 0.01}.get(n, 0.0), 200)
    assert not first_found(lambda t, n: {"d": 0.045}.get(n, 0.03), 200)


def test_spotless_node_does_not_make_others_look_bad():
    assert not first_found(lambda t, n: 0.0 if n == "d" else 0.1, 200)


def test_two_of_eight_do_not_hide_each_other():
    nodes = tuple("abcdefgh")
    found = first_found(lambda t, n: 1 / 4 if n in "gh" else 0.001, 30, nodes=nodes)
    assert set(found) == {"g", "h"}


@pytest.mark.parametrize("nodes", ["a", "ab"])
def test_fewer_than_three_nodes_accuse_none(nodes):
    assert not first_found(lambda t, n: float(n == "a"), 50, nodes=tuple(nodes))


def test_short_lived_names_are_not_peers():
    comparison = Comparison()
    for t in range(60):
        tallies = {n: Tally(24, 0, 0) for n in "abc"} | {f"new {t}": Tally(24, 0, 0)}
        comparison.add(tallies | {"d": Tally(24, 2, 2)})
    assert comparison.evidence()["d"].peers == 3
    assert comparison.evidence()["d"].log_e > threshold(3, 1e-3)


def test_evidence_survives_the_window_and_memory_is_bounded():
    comparison = Comparison()
    for t in range(WINDOW + 50):
        comparison.add({n: Tally(24, 2 * (n == "d"), 2 * (n == "d")) for n in NODES})
        if t > WINDOW:
            assert comparison.evidence()["d"].log_e > threshold(3, 1e-3)
    assert comparison._history._codes.shape[1] <= WINDOW + 8


@given(st.integers(0, 1000), st.floats(0, 0.5))
@settings(deadline=None)
def test_number_of_honest_peers(peers, hostile):
    honest = honest_peers(peers, hostile)
    assert honest >= 1
    assert honest >= peers * (1 - hostile) - 1 - 1e-6
    assert honest >= peers * (1 - hostile) - 1e-6 or peers * hostile < 1
    if hostile > 0 and peers > 1:
        assert honest < peers


@pytest.mark.parametrize("rate", [0.1, 0.25, 0.5])
def test_spotless_third_does_not_make_others_look_bad(rate):
    for seed in range(3):
        assert not first_found(
            lambda t, n: 0.0 if n == "c" else rate, 100, nodes=tuple("abc"), seed=seed
        )


@pytest.mark.parametrize("work", [(96, 48, 24, 4), (24, 24, 1, 24), (24, 4, 24, 48)])
@pytest.mark.parametrize("bad", [0, 3])
def test_node_that_sends_less_shields_no_other(work, bad):
    if work[bad] < 24:
        return
    chance, comparison, found = random.Random(0), Comparison(), set()
    for _ in range(60):
        tallies = {}
        for i, (name, judged) in enumerate(zip(NODES, work, strict=True)):
            k = sum(chance.random() < (1 / 12 if i == bad else 0.001) for _ in range(judged))
            tallies[name] = Tally(judged, k, k)
        comparison.add(tallies)
        found |= {
            n for n, e in comparison.evidence().items() if e.log_e >= threshold(e.others, 1e-3)
        }
    assert found == {NODES[bad]}


def test_one_of_three_is_found():
    found = first_found(lambda t, n: 1 / 12 if n == "c" else 0.001, 30, nodes=tuple("abc"))
    assert set(found) == {"c"}


def test_all_nodes_of_a_large_swarm_are_judged():
    names = [f"{i:02}" for i in range(MAX_PEERS + 8)]
    comparison = Comparison(salt=b"secret")
    for t in range(40):
        # The last ones are absent now and then, so they are not among those that work most.
        at_work = names if t % 10 else names[:-2]
        comparison.add({n: Tally(24, 3 * (n == names[-1]), 3 * (n == names[-1])) for n in at_work})
    found = comparison.evidence()
    assert {e.peers for e in found.values()} == {MAX_PEERS}
    assert {e.others for e in found.values()} == {len(names) - 1}
    assert [n for n, e in found.items() if e.log_e > threshold(e.others, 1e-3)] == [names[-1]]


def test_choice_of_peers_is_secret_and_stable():
    def peers_of(salt, rounds=1):
        comparison = Comparison(salt=salt)
        for _ in range(rounds):
            comparison.add({str(i): Tally(1, i == 0, i == 0) for i in range(100)})
            comparison.evidence()
        return comparison._accounts["0"].peers

    assert peers_of(b"1") == peers_of(b"1", 5)
    assert peers_of(b"1") != peers_of(b"2")


def test_rounds_added_together_give_the_same_evidence():
    chance = random.Random(1)
    one, other = Comparison(window=20), Comparison(window=20)
    for t in range(60):
        tallies = {n: Tally(24, k, k) for n in NODES if (k := chance.choice((0, 0, 0, 2))) or t % 7}
        one.add(tallies)
        other.add(tallies)
        step_by_step = one.evidence()
        if t % 9 == 0 or t == 59:
            assert other.evidence() == step_by_step


def test_levels_over_nodes_and_sizes_sum_to_alpha():
    from math import exp

    assert sum(m * exp(-threshold(m - 1, 1e-3)) for m in range(3, 100_000)) <= 1e-3


def test_arguments_are_checked():
    for arguments in ({"hostile": 0.6}, {"hostile": -1}, {"window": 3}):
        with pytest.raises(ValueError, match="expected"):
            Comparison(**arguments)
