"""Evidence wealth: honest nodes stay low, late poison is not diluted, and state is restored."""

import math

import numpy as np
import pytest

from grpo_guard.nodes.fortunes import MAX_NODES, NodeEvidenceProcess
from grpo_guard.nodes.store import NodeStore


def run(fortunes, log_es, node="ann", first=0):
    return [fortunes.add({node: (first + i, [e])})[node].log for i, e in enumerate(log_es)]


def test_honest_nodes_rarely_reach_the_threshold():
    rng = np.random.default_rng(0)
    reached = 0
    for _ in range(300):
        # e = 5 with probability 0.2, else 0: mean 1 with a large variance
        es = np.where(rng.random(60) < 0.2, math.log(5), -700.0)
        reached += max(run(NodeEvidenceProcess(), es)) >= math.log(20)
    assert reached / 300 <= 0.05 + 3 * math.sqrt(0.05 / 300)


def test_poison_after_long_honest_work_is_not_diluted():
    fortunes = NodeEvidenceProcess()
    run(fortunes, [math.log(0.5)] * 300)
    assert run(fortunes, [math.log(1e9)], first=300)[0] > math.log(1000)


def test_repeated_batch_counts_once():
    fortunes = NodeEvidenceProcess()
    first = fortunes.add({"ann": (7, [math.log(30)])})
    assert fortunes.add({"ann": (7, [math.log(30)])}) == first
    assert fortunes.add({"ann": (8, [math.log(30)])})["ann"].log > first["ann"].log


def test_node_that_stops_is_released():
    fortunes = NodeEvidenceProcess()
    run(fortunes, [500.0])
    after = run(fortunes, [math.log(0.3)] * 60, first=1)
    assert after[0] > math.log(1000) > after[-1]


def test_state_is_restored_and_shared(tmp_path):
    one, other = (NodeEvidenceProcess(store=NodeStore(tmp_path)) for _ in range(2))
    run(one, [2.0, 1.0])
    assert other.state_dict() == one.state_dict()
    fresh = NodeEvidenceProcess()
    fresh.load_state_dict(one.state_dict())
    assert run(fresh, [0.5], first=9) == run(one, [0.5], first=9)


@pytest.mark.parametrize(
    "state",
    [
        {"format": 3, "nodes": []},
        {"format": 1, "nodes": [["ann", "much", 1]]},
        {"format": 1, "nodes": [["ann", math.inf, 1]]},
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
    fortunes = NodeEvidenceProcess()
    run(fortunes, [1.0])
    before = fortunes.state_dict()
    with pytest.raises(ValueError, match="NodeEvidenceProcess"):
        fortunes.load_state_dict(state)
    assert fortunes.state_dict() == before


def test_invented_names_are_bounded_and_displace_no_evidence():
    fortunes = NodeEvidenceProcess()
    fortunes.add({"eve": (1, [20.0])})
    for start in range(0, 2 * MAX_NODES, 1024):
        fortunes.add({str(start + i): (i, [math.log(0.5)]) for i in range(1024)})
    assert len(fortunes.state_dict()["nodes"]) == MAX_NODES
    assert fortunes.add({"eve": (2, [0.0])})["eve"].log > math.log(1000)
    late = [fortunes.add({"late": (9 + i, [math.log(30)])})["late"].log for i in range(3)]
    assert late[-1] > math.log(1000) > late[0]


def test_steadily_winning_bet_is_kept_next_to_a_losing_one():
    fortunes = NodeEvidenceProcess(weights=(0.9, 0.1))
    for batch in range(20):
        fortune = fortunes.add({"eve": (batch, [math.log(0.5), math.log(2)])})["eve"]
    assert (
        fortune.log > math.log(2**20 / 10 / 2) - 1e-9
    )  # half of its stake was there from the start


def test_several_columns_are_one_bet_against_an_honest_node():
    rng = np.random.default_rng(0)
    reached = 0
    for _ in range(200):
        fortunes, most = NodeEvidenceProcess(weights=(0.25,) * 4), -math.inf
        for batch in range(40):
            es = np.where(rng.random(4) < 0.2, math.log(5), -700.0)
            most = max(most, fortunes.add({"ann": (batch, es)})["ann"].log)
        reached += most >= math.log(20)
    assert reached / 200 <= 0.05 + 3 * math.sqrt(0.05 / 200)


def test_state_of_an_earlier_release_is_read():
    fortunes = NodeEvidenceProcess(weights=(0.5, 0.5))
    fortunes.load_state_dict({"format": 1, "nodes": [["eve", 9.0, 3, 1, 2]]})
    assert fortunes.add({"eve": (2, [0.0, 0.0])})["eve"].log == pytest.approx(9.0 - math.log(2))
    again = NodeEvidenceProcess(weights=(0.5, 0.5))
    again.load_state_dict(fortunes.state_dict())
    assert again.state_dict() == fortunes.state_dict()
