"""E-processes: what honest nodes reach, that late poison is not diluted, and state is restored."""

import itertools
import json
import math
import sqlite3

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_guard.content.arithmetic.verifier import ArithmeticVerifier
from grpo_guard.content.length.compare import Member
from grpo_guard.logprob.evidence import _restarted
from grpo_guard.logprob.reader.proposals import NodeSentences
from grpo_guard.nodes.e_process import CAP, EProcess, log_add, log_share, log_shares, log_threshold
from grpo_guard.nodes.e_process_memory import MAX_NODES, EProcessMemory
from grpo_guard.nodes.lengths import BETS, NodeMemory
from grpo_guard.nodes.store import NodeStore

WEIGHTS = (0.5, 0.3, 0.2)


def run(memory, log_factors, node="ann", first=0):
    added = [memory.add({node: (first + i, [f])})[node] for i, f in enumerate(log_factors)]
    return [process.log_e_value for process in added]


def after(factors, weights=WEIGHTS):
    """The e-process after batches with these factors, shape [batches, columns]."""
    process = EProcess()
    for row in factors:
        process = process.after([math.log(f) if f else -math.inf for f in row], weights)
    return process


def by_definition(factors, weights=WEIGHTS):
    """The e-value, start by start: each start's share times all factors from then on."""
    stakes = [1 / ((start + 1) * (start + 2)) for start in range(len(factors))]
    paths = [np.prod(factors[start:], axis=0) @ weights for start in range(len(factors))]
    return float(np.dot(stakes, paths))


FACTORS = st.lists(st.tuples(*[st.floats(0.05, 4) for _ in WEIGHTS]), min_size=1, max_size=12)


@given(FACTORS)
def test_e_value_is_the_sum_over_starts_and_columns(factors):
    process = after(factors)
    assert process.starts == len(factors)
    assert process.log_e_value == pytest.approx(math.log(by_definition(factors)))


@given(st.integers(0, 10_000))
def test_shares_of_starts_and_reserve_add_up_to_the_stake(starts):
    begun = np.exp(log_shares(np.arange(starts))).sum()
    assert begun + math.exp(EProcess((), starts).log_reserve) == pytest.approx(1)
    assert log_shares(np.array([starts])) == pytest.approx(log_share(starts))


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=30))
def test_tokens_of_one_completion_are_batches_of_the_same_process(log_factors):
    process = EProcess()
    for token, log_e in enumerate(_restarted(np.array(log_factors))):
        process = process.after([log_factors[token]], cap=math.inf)
        assert log_e == pytest.approx(log_add(process.log_e_value, process.log_reserve))


# Chance that a batch wins, and the stake of each column on it.
BET = st.tuples(st.floats(0.05, 0.95), st.tuples(*[st.floats(0, 1) for _ in WEIGHTS]))


@given(st.lists(BET, min_size=1, max_size=6), st.sampled_from([0.7, 1.0]))
def test_mean_over_all_honest_pasts_is_at_most_one(batches, mean_factor):
    """Each batch wins or loses; all 2^n pasts are tried."""
    mean = 0.0
    for won in itertools.product((True, False), repeat=len(batches)):
        chance, factors = 1.0, []
        for wins, (p, stakes) in zip(won, batches, strict=True):
            chance *= p if wins else 1 - p
            paid = 1 / p if wins else 0.0
            factors.append([mean_factor * (1 - stake + stake * paid) for stake in stakes])
        process = after(factors)
        mean += chance * (math.exp(process.log_e_value) + math.exp(process.log_reserve))
    assert mean <= 1 + 1e-9
    if mean_factor == 1:
        assert mean == pytest.approx(1)


@pytest.mark.parametrize("tests", [1, 5])
@pytest.mark.parametrize("lucky", [0.5, 0.1])
def test_honest_e_values_cross_the_threshold_no_more_often_than_alpha(lucky, tests):
    rng, alpha, runs = np.random.default_rng(1), 0.2, 400
    threshold = log_threshold(alpha, tests)
    crossed = 0
    for _ in range(runs):
        process, most = EProcess(), -math.inf
        for won in rng.random((60, len(WEIGHTS))) < lucky:
            stakes = np.array([0.9, 0.5, 0.1])
            factors = 1 - stakes + stakes * won / lucky
            process = process.after(np.log(factors), WEIGHTS)
            most = max(most, log_add(process.log_e_value, process.log_reserve))
        crossed += most >= threshold
    level = alpha / tests
    assert crossed / runs <= level + 3 * math.sqrt(level / runs)


@given(FACTORS, st.floats(-2, 2))
def test_cap_only_takes_away(factors, cap):
    free, capped = EProcess(), EProcess()
    for row in factors:
        free = free.after(np.log(row), WEIGHTS)
        capped = capped.after(np.log(row), WEIGHTS, cap=cap)
        assert max(capped.log_wealth) <= cap
        assert capped.log_e_value <= free.log_e_value + 1e-9


def member(index, length):
    return Member(index, length, f"n{index}", 1.0)


@given(st.lists(st.tuples(*[st.integers(1, 9)] * 3), min_size=1, max_size=40))
def test_e_values_of_lengths_are_those_of_their_definition(rounds):
    """The mean over bets of each start's stake times the products, and what is not staked."""
    memory = NodeMemory(alpha=0.9)
    for lengths in rounds:
        memory.observe([[member(i, length) for i, length in enumerate(lengths)]])
    for i, j in itertools.permutations(range(3), 2):
        signs = [(r[i] > r[j]) - (r[i] < r[j]) for r in rounds]
        factors = [[1 + bet * sign for bet in BETS] for sign in signs]
        value = by_definition(factors, [1 / len(BETS)] * len(BETS)) + 1 / (len(rounds) + 1)
        process = memory._pairs[f"n{i}", f"n{j}"]
        found = log_add(process.log_e_value, process.log_reserve)
        assert found == pytest.approx(math.log(value))


def test_lengths_of_0_3_are_read():
    saved = {"format": 2, "nodes": ["a", "b"], "wealth": [["a", "b", 3, 1.0, 2.0, -1e9]]}
    memory = NodeMemory()
    memory.load_state_dict(saved)
    process = memory._pairs["a", "b"]
    assert process.starts == 3
    assert math.exp(process.log_e_value) == pytest.approx((math.e + math.e**2) / 3)
    again = NodeMemory()
    again.load_state_dict(json.loads(json.dumps(memory.state_dict())))
    assert again.state_dict() == memory.state_dict()


@pytest.mark.parametrize(
    "row", [["a", "b", 3, 1.0, 61.0, 0.0], ["a", "b", 3, 1.0, 2.0], ["a", "b"]]
)
def test_malformed_lengths_of_0_3_are_refused(row):
    with pytest.raises(ValueError, match="NodeMemory"):
        NodeMemory().load_state_dict({"format": 2, "nodes": ["a", "b"], "wealth": [row]})


def test_names_in_the_store_are_those_of_earlier_releases(tmp_path):
    rule = ArithmeticVerifier(store=NodeStore(tmp_path))
    users = [rule.counts, NodeSentences(1e-3, NodeStore(tmp_path))]
    for user, name in zip(users, ("arithmetic", "reader_fortunes"), strict=True):
        written = EProcessMemory(store=NodeStore(tmp_path), name=name)
        written.load_state_dict({"format": 2, "nodes": [["eve", [9.0], 3, 1, 2]]})
        assert user.e_processes.log_e_values() == {"eve": 9.0}
    with sqlite3.connect(tmp_path / "nodes.sqlite") as connection:
        EProcessMemory(store=NodeStore(tmp_path)).add({"eve": (1, [0.0])})
        names = {name for (name,) in connection.execute("SELECT name FROM memories")}
    assert names == {"arithmetic", "reader_fortunes", "fortunes"}


def test_honest_nodes_rarely_reach_the_threshold():
    rng = np.random.default_rng(0)
    reached = 0
    for _ in range(300):
        # e = 5 with probability 0.2, else 0: mean 1 with a large variance
        es = np.where(rng.random(60) < 0.2, math.log(5), -700.0)
        reached += max(run(EProcessMemory(), es)) >= math.log(20)
    assert reached / 300 <= 0.05 + 3 * math.sqrt(0.05 / 300)


def test_poison_after_long_honest_work_is_not_diluted():
    memory = EProcessMemory()
    run(memory, [math.log(0.5)] * 300)
    assert run(memory, [math.log(1e9)], first=300)[0] > math.log(1000)


def test_repeated_batch_counts_once():
    memory = EProcessMemory()
    first = memory.add({"ann": (7, [math.log(30)])})
    assert memory.add({"ann": (7, [math.log(30)])}) == first
    assert memory.add({"ann": (8, [math.log(30)])})["ann"].log_e_value > first["ann"].log_e_value


def test_wealth_is_capped():
    assert EProcess().after([500.0]).log_wealth == (CAP,)


def test_node_that_stops_is_released():
    memory = EProcessMemory()
    run(memory, [500.0])
    after = run(memory, [math.log(0.3)] * 60, first=1)
    assert after[0] > math.log(1000) > after[-1]


def test_state_is_restored_and_shared(tmp_path):
    one, other = (EProcessMemory(store=NodeStore(tmp_path)) for _ in range(2))
    run(one, [2.0, 1.0])
    assert other.state_dict() == one.state_dict()
    fresh = EProcessMemory()
    fresh.load_state_dict(one.state_dict())
    assert run(fresh, [0.5], first=9) == run(one, [0.5], first=9)


@pytest.mark.parametrize(
    "state",
    [
        {"format": 3, "nodes": []},
        {"format": 1, "nodes": []},
        {"format": 2, "nodes": [["ann", ["much"], 1]]},
        {"format": 2, "nodes": [["ann", [math.inf], 1]]},
        {"format": 2, "nodes": [["ann", [1.0, 1.0], 1]]},
        {"format": 2, "nodes": [["ann", 1.0, 1]]},
        {"format": 2, "nodes": [["ann", [1.0], -1]]},
        {"format": 2, "nodes": [["ann", [1.0], 1, 1, 2, 3, 4, 5]]},
        {"format": 2, "nodes": [[7, [1.0], 1]]},
        [],
    ],
)
def test_broken_state_changes_nothing(state):
    memory = EProcessMemory()
    run(memory, [1.0])
    before = memory.state_dict()
    with pytest.raises(ValueError, match="EProcessMemory"):
        memory.load_state_dict(state)
    assert memory.state_dict() == before


def test_invented_names_are_bounded_and_displace_no_evidence():
    memory = EProcessMemory()
    memory.add({"eve": (1, [20.0])})
    for start in range(0, 2 * MAX_NODES, 1024):
        memory.add({str(start + i): (i, [math.log(0.5)]) for i in range(1024)})
    assert len(memory.state_dict()["nodes"]) == MAX_NODES
    assert memory.add({"eve": (2, [0.0])})["eve"].log_e_value > math.log(1000)
    late = [memory.add({"late": (9 + i, [math.log(30)])})["late"].log_e_value for i in range(3)]
    assert late[-1] > math.log(1000) > late[0]


def test_steadily_winning_bet_is_kept_next_to_a_losing_one():
    memory = EProcessMemory(weights=(0.9, 0.1))
    for batch in range(20):
        process = memory.add({"eve": (batch, [math.log(0.5), math.log(2)])})["eve"]
    assert (
        process.log_e_value > math.log(2**20 / 10 / 2) - 1e-9
    )  # half of its stake was there from the start


def test_several_columns_are_one_bet_against_an_honest_node():
    rng = np.random.default_rng(0)
    reached = 0
    for _ in range(200):
        memory, most = EProcessMemory(weights=(0.25,) * 4), -math.inf
        for batch in range(40):
            es = np.where(rng.random(4) < 0.2, math.log(5), -700.0)
            most = max(most, memory.add({"ann": (batch, es)})["ann"].log_e_value)
        reached += most >= math.log(20)
    assert reached / 200 <= 0.05 + 3 * math.sqrt(0.05 / 200)
