"""Queues of the capacity plan, and the ledger's scale study on small numbers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_guard.evals.studies.ledger_scale import compared, scale
from grpo_guard.evals.studies.scale import planned
from grpo_guard.evals.studies.scale_queue import Stage, play

TIMES = {
    "text_rules_seconds_per_completion": 0.001,
    "memory_seconds_per_completion": 0.0001,
    "log_prob_seconds_per_token_on_a_core": 0.01,
}


def test_one_stage_is_work_over_workers():
    played = play([Stage("a", "cores", np.ones(12))], {"cores": 4})
    assert played.seconds == 3.0
    assert played.busy == {"cores": 1.0}


def test_two_stages_overlap_and_the_slower_one_is_the_bottleneck():
    stages = [Stage("a", "cores", np.full(10, 1.0)), Stage("b", "one", np.full(10, 3.0))]
    played = play(stages, {"cores": 1, "one": 1})
    assert played.seconds == 1.0 + 10 * 3.0
    assert played.bottleneck == "one"
    assert sorted(played.done) == [4.0 + 3 * k for k in range(10)]


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.floats(0.01, 5), st.floats(0.01, 5)), min_size=1, max_size=30),
    st.integers(1, 4),
    st.integers(1, 3),
)
def test_no_round_is_faster_than_its_work_or_slower_than_one_worker(parts, cores, gpus):
    first, second = np.array(parts).T
    stages = [Stage("a", "cores", first), Stage("b", "gpus", second)]
    played = play(stages, {"cores": cores, "gpus": gpus})
    least = max(first.sum() / cores, second.sum() / gpus, (first + second).max())
    assert least - 1e-9 <= played.seconds <= (first + second).sum() + 1e-9
    assert all(0 < busy <= 1 + 1e-9 for busy in played.busy.values())
    assert play(stages, {"cores": cores, "gpus": gpus}).seconds == played.seconds


def test_plan_names_the_bottleneck():
    plan = planned(TIMES, nodes=20, each=200, tokens=100, per_gpu=1000.0)
    assert plan["16 cores, 100% scored"]["bottleneck"] == "cores"
    assert plan["16 cores, 8 GPUs, 100% scored"]["bottleneck"] == "GPUs"
    times = [plan[f"16 cores, {s} scored"]["seconds"] for s in ("5%", "25%", "100%")]
    assert times == sorted(times)


@pytest.mark.slow
def test_ledger_scale_is_measured():
    figures = scale(nodes=50, records=200, rounds=3)
    assert figures["few"]["records_per_round"] == figures["many"]["records_per_round"] == 200
    assert figures["ratio"] > 0
    assert compared(50, 3, 0.5)["most_memory_bytes"] >= 0
