"""Fortunes: honest nodes stay poor, poison late in a run is not diluted, and state comes back."""

import math

import numpy as np
import pytest

from grpo_guard.nodes.fortunes import MAX_NODES, Fortunes
from grpo_guard.nodes.store import NodeStore


def run(fortunes, log_es, node="ann", first=0):
    return [fortunes.add({node: (first + i, e)})[node] for i, e in enumerate(log_es)]


def test_an_honest_node_hardly_ever_reaches_the_bar():
    rng = np.random.default_rng(0)
    reached = 0
    for _ in range(300):
        # e = 5 with chance 0.2, else 0: mean 1, as wild as it gets
        es = np.where(rng.random(60) < 0.2, math.log(5), -700.0)
        reached += max(run(Fortunes(), es)) >= math.log(20)
    assert reached / 300 <= 0.05 + 3 * math.sqrt(0.05 / 300)


def test_poison_after_long_honest_work_is_not_diluted():
    fortunes = Fortunes()
    run(fortunes, [math.log(0.5)] * 300)
    assert run(fortunes, [math.log(1e9)], first=300)[0] > math.log(1000)


def test_a_batch_that_comes_twice_counts_once():
    fortunes = Fortunes()
    first = fortunes.add({"ann": (7, math.log(30))})
    assert fortunes.add({"ann": (7, math.log(30))}) == first
    assert fortunes.add({"ann": (8, math.log(30))})["ann"] > first["ann"]


def test_a_node_that_stops_comes_back():
    fortunes = Fortunes()
    run(fortunes, [500.0])
    after = run(fortunes, [math.log(0.3)] * 60, first=1)
    assert after[0] > math.log(1000) > after[-1]


def test_state_is_taken_up_and_shared(tmp_path):
    one, other = (Fortunes(store=NodeStore(tmp_path)) for _ in range(2))
    run(one, [2.0, 1.0])
    assert other.state_dict() == one.state_dict()
    fresh = Fortunes()
    fresh.load_state_dict(one.state_dict())
    assert run(fresh, [0.5], first=9) == run(one, [0.5], first=9)


@pytest.mark.parametrize(
    "state",
    [
        {"format": 2, "nodes": []},
        {"format": 1, "nodes": [["ann", "much", 1]]},
        {"format": 1, "nodes": [["ann", math.inf, 1]]},
        {"format": 1, "nodes": [["ann", 1.0, -1]]},
        {"format": 1, "nodes": [["ann", 1.0, 1, 1, 2, 3, 4, 5]]},
        {"format": 1, "nodes": [[7, 1.0, 1]]},
        [],
    ],
)
def test_a_broken_state_changes_nothing(state):
    fortunes = Fortunes()
    run(fortunes, [1.0])
    before = fortunes.state_dict()
    with pytest.raises(ValueError, match="Fortunes"):
        fortunes.load_state_dict(state)
    assert fortunes.state_dict() == before


def test_invented_names_are_bounded_and_drive_no_evidence_out():
    fortunes = Fortunes()
    fortunes.add({"eve": (1, 20.0)})
    for start in range(0, 2 * MAX_NODES, 1024):
        fortunes.add({str(start + i): (i, math.log(0.5)) for i in range(1024)})
    assert len(fortunes.state_dict()["nodes"]) == MAX_NODES
    assert fortunes.add({"eve": (2, 0.0)})["eve"] > math.log(1000)
    late = [fortunes.add({"late": (9 + i, math.log(30))})["late"] for i in range(3)]
    assert late[-1] > math.log(1000) > late[0]
