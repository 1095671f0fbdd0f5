"""A group that straddles two processes is judged as one, and its verdicts come back."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from grpo_guard import Completion, Guard, Policy
from tests.helpers.rule_verifiers import NoWord
from tests.helpers.subprocesses import environment
from tests.trl.tiny_trl import advantages
from tests.trl.trl_rank_rewards import CASES, RULES, earned
from tests.trl.trl_two_ranks import RULES as RULES_OF_TRAINER
from tests.trl.trl_two_ranks import SIGNED

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent


def run(folder, *case, script="trl_two_ranks.py"):
    """Run two ranks to completion."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    port = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    return subprocess.run(
        [*command, *port, HERE / script, folder, *case],
        env=environment(ACCELERATE_USE_CPU="true", OMP_NUM_THREADS="1"),
        timeout=480,
    )


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """The results of each of two ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    run(folder).check_returncode()
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("way", ["decorated", "trainer"])
def test_groups_are_judged_whole_and_vetoes_reach_the_right_rank(ranks, way):
    expected = advantages([2.0, 3.0, 4.0, None])
    for rank, found in enumerate(ranks):
        ((captured,), _) = found[way]
        np.testing.assert_allclose(captured, expected[2 * rank : 2 * rank + 2], atol=1e-3)
    batches = [found[way][1] for found in ranks]
    # One rank judges all four, numbered as one group; nothing is left for the other to judge.
    assert batches[0] == [[[f"peer{i}", 0, i] for i in range(4)]]
    assert batches[1] == []


def test_tokens_are_counted_over_ranks(ranks):
    # 2 + 3 + 4 characters and end tokens remain out of 14.
    assert [found["items"] for found in ranks] == [9, 9]


def test_only_async_functions(ranks):
    expected = advantages([1.0, 1.0, 1.0, 0.0])
    for rank, found in enumerate(ranks):
        ((captured,), _) = found["async"]
        np.testing.assert_allclose(captured, expected[2 * rank : 2 * rank + 2], atol=1e-3)


def test_empty_slot_keeps_its_verdict_across_ranks(ranks):
    """The filler is not judged, and although it has the lowest reward it does not lose."""
    expected = advantages([1.0, 2.0, None, 4.0])
    for rank, found in enumerate(ranks):
        captured, batches = found["missing"]
        np.testing.assert_allclose(captured[0], expected[2 * rank : 2 * rank + 2], atol=1e-3)
        assert batches == ([["peer1", "peer22", "peer4444"]] if rank == 0 else [])


def test_failing_guard_on_one_rank_stops_all_with_its_reason(ranks):
    assert ranks[0]["error"] == "nothing can be looked at"
    assert ranks[1]["error"] == "rank 0: nothing can be looked at"


def test_dead_rank_ends_the_run(tmp_path):
    assert run(tmp_path, "dies").returncode != 0
    assert not list(tmp_path.glob("rank*.json"))


@pytest.fixture(scope="module")
def halves(tmp_path_factory):
    """The rewards of guarded functions on two ranks, each with half of every batch."""
    folder = tmp_path_factory.mktemp("halves")
    run(folder, script="trl_rank_rewards.py").check_returncode()
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


def test_group_over_two_ranks_earns_the_same_as_on_one(halves):
    alone = json.loads(json.dumps(earned()))
    assert alone["one group, zero"][0] == [-3.0, 1.0, -3.0, 1.0]
    assert alone["the penalty is another group's, zero"][0] == [0.0, 1.0, -3.0, 1.0]
    assert len(alone) == len(CASES) * len(RULES) + 1
    for name, expected in alone.items():
        first, second = (found["earned"][name] for found in halves)
        assert [a + b for a, b in zip(first, second, strict=True)] == expected, name


def test_function_failure_on_one_rank_reaches_all(halves):
    assert halves[1]["raised"] == ["ValueError: no reward today"] * 2
    assert halves[0]["raised"] == ["RuntimeError: rank 1: no reward today"] * 2


@pytest.mark.parametrize("rule", RULES_OF_TRAINER)
def test_trainer_on_two_ranks_matches_one_rank_under_every_rule(ranks, rule):
    batch = [Completion("0+0=", text) for text in SIGNED]
    alone = Guard(NoWord("22"), policy=Policy(on_reject=rule)).apply([*SIGNED.values()], batch)
    for rank, found in enumerate(ranks):
        expected = advantages(alone)[2 * rank : 2 * rank + 2]
        np.testing.assert_allclose(found[f"rule {rule}"][0], expected, atol=1e-3)
