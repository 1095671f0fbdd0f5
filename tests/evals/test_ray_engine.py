"""A swarm whose nodes are Ray actors behaves like the swarm in one process."""

import json
import os
import pickle
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
ray = pytest.importorskip("ray", reason="needs ray: pip install 'grpo-guard[ray]'")

from grpo_guard.core.completion import Completion  # noqa: E402
from grpo_guard.core.verdict import accept, reject  # noqa: E402
from grpo_guard.evals.policies.bundled import load_bundled  # noqa: E402
from grpo_guard.evals.swarm.config import SwarmConfig  # noqa: E402
from grpo_guard.evals.swarm.engine import DivergedError, Swarm  # noqa: E402
from grpo_guard.evals.swarm.experiment import Spec, build  # noqa: E402
from grpo_guard.evals.swarm.members import Peer  # noqa: E402
from grpo_guard.evals.swarm.session import NodeLostError, RaySession  # noqa: E402
from grpo_guard.evals.swarm.suite import play_all  # noqa: E402
from grpo_guard.evals.swarm.training import CHECKPOINT, Interrupted, train  # noqa: E402
from grpo_guard.evals.tasks.python_maths import CALC, PythonMaths  # noqa: E402
from grpo_guard.evals.tasks.word_problems import WordProblems  # noqa: E402
from grpo_guard.guard import Review  # noqa: E402
from grpo_guard.server.distributed import cluster as clusters  # noqa: E402
from grpo_guard.server.distributed.cluster import RayMissingError  # noqa: E402

BASE = SwarmConfig(iterations=3, nodes=3, malicious=1, prompts=3, group_size=6, max_new_tokens=48)
# Together they cover live weights, attack state, probes, the first weights, forced slots.
CASES = [
    ("horizontal", "homogeneous", "reward_selection", "homogeneous"),
    ("vertical", "homogeneous", "math", "homogeneous"),
    ("horizontal", "heterogeneous", "reward_selection", "paper_logit"),
    ("vertical", "heterogeneous", "half_gibberish", "heterogeneous"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    torch.set_num_threads(1)
    if ray.is_initialized():  # another package's thread, which may end after this file
        yield
        return
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def played(swarm: Swarm, folder: Path, stop: threading.Event | None = None) -> list[Any]:
    """Train, from the folder's checkpoint if there is one; return the rows without times."""
    rows, _ = train(swarm, folder, identity={"run": 1}, stop=stop)
    plain: list[dict[str, Any]] = json.loads(json.dumps(rows))
    return [{k: v for k, v in row.items() if "seconds" not in k} for row in plain]


def weights_of(swarm: Swarm) -> Any:
    return torch.cat([value.flatten() for value in swarm.model.state_dict().values()])


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def test_both_engines_play_the_same_rounds(case: Any, tmp_path: Path) -> None:
    setting, models, attack, chosen = case
    spec = Spec(attack, chosen, replace(BASE, setting=setting, models=models))
    folder = tmp_path / "ray"
    folder.mkdir()
    here, there = build(spec, tmp_path), build(spec, folder, "ray")
    wanted = played(here, tmp_path)
    assert all(row["grad_norm"] > 0 for row in wanted)
    assert sum(row["poisoned"] for row in wanted) > 0
    try:
        stop = threading.Event()
        stop.set()
        with pytest.raises(Interrupted):
            played(there, folder, stop)
        assert played(there, folder) == wanted
        assert torch.equal(weights_of(there), weights_of(here))
        ledgers = sorted(path.parent.name for path in folder.glob("nodes/*/nodes.sqlite"))
        assert ledgers == ([] if chosen == "paper_logit" else ["node-0", "node-1"])

        saved = (folder / CHECKPOINT).read_bytes()
        ray.kill(there.session.actors["node-1"])
        with pytest.raises(NodeLostError, match="node-1: expected its actor to answer"):
            played(there, folder)
        assert (folder / CHECKPOINT).read_bytes() == saved
    finally:
        there.close()
    assert ray.is_initialized()  # it existed before
    # The state saved by the actors after their first round is a checkpoint of either engine.
    assert played(build(spec, folder), folder) == wanted


def one_sided() -> Callable[[Peer, Path], Any]:
    """Defined inside a function, so that it reaches the actors by value."""

    def guard_in(peer: Peer, folder: Path) -> Any:
        def say(batch: list[Completion]) -> list[Any]:
            odd = folder.name == "node-1"
            return [reject("o") if odd and i % 2 else accept("o") for i in range(len(batch))]

        return SimpleNamespace(
            begin=lambda round, prompts: None, review=lambda batch: Review(say(batch), {}),
            excluded=tuple,
        )  # fmt: skip

    return guard_in


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_disagreement_between_nodes_stops_the_run(tmp_path: Path) -> None:
    config = replace(BASE, nodes=2, malicious=0, prompts=4)
    swarm = Swarm(
        [Peer(*load_bundled())], WordProblems(), config, guard_in=one_sided(), folder=tmp_path,
        session=RaySession(),
    )  # fmt: skip
    try:
        with pytest.raises(DivergedError, match="node-1: expected the update of node-0"):
            swarm.step(0)
    finally:
        swarm.close()


def test_missing_ray_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "find_spec", lambda name: None)
    with pytest.raises(RayMissingError, match=r"pip install 'grpo-guard\[ray\]'"):
        RaySession()


def test_ray_engine_refuses_workers(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="workers: expected 1 with --engine ray, got 2"):
        play_all([], tmp_path, command="", on_row=lambda spec, row: None, workers=2, engine="ray")


@pytest.mark.slow
def test_unreachable_address_is_reported() -> None:
    code = (
        "from grpo_guard.evals.swarm.session import RaySession, NodeLostError\n"
        "try: RaySession()\n"
        "except NodeLostError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={**os.environ, "RAY_ADDRESS": "127.0.0.1:1"}, timeout=100,
    )  # fmt: skip
    assert done.stdout.startswith("ray: expected a cluster at 127.0.0.1:1")


@pytest.mark.slow
def test_task_that_runs_programs_can_be_pickled() -> None:
    task = PythonMaths(extra_modules={"calc": CALC}, allow_weak=True)
    sent = pickle.loads(pickle.dumps(task))
    problem = sent.sample(random.Random(0))
    assert sent.reward(problem.solution, problem.answer) == 1.0
    program = f"<code>from calc import addition\nprint(addition({problem.answer}, 0))</code>"
    assert sent.reward(program, problem.answer) == task.reward(program, problem.answer) == 1.0
    sent.close()
    task.close()
