"""docs/examples/verl_coin_seeds.py: each training rollout requests its own slot's seed."""

import asyncio
import runpy
from pathlib import Path

import pytest

pytest.importorskip("verl", reason="needs verl: make test-verl")

from grpo_guard.adapters.verl.agent_loop import GuardedRollouts
from grpo_guard.logprob import noise

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "verl_coin_seeds.py"
PROMPT = [{"role": "user", "content": "2 + 2?"}]


@pytest.fixture
def asked(monkeypatch):
    """The requests that the server would get, and the example's names."""

    async def ask(self, sampling_params, trajectory, **row):
        return sampling_params

    monkeypatch.setattr(GuardedRollouts, "_run_agent_loop", ask)
    example = runpy.run_path(str(EXAMPLE))
    worker = object.__new__(example["CoinWorker"])
    return lambda *args, **row: asyncio.run(worker._run_agent_loop(*args, **row)), example


def test_each_slot_has_its_own_seed_except_in_validation(asked):
    ask, example = asked
    shared = {"temperature": 1.0}
    training = {"validate": False, "step": 7, "rollout_n": 0}
    rows = [ask(shared, training, session_id=i, raw_prompt=PROMPT) for i in range(3)]
    assert [row["seed"] for row in rows] == [
        noise.signed(example["COIN"].seed(round=7, node=example["ME"], slot=i, prompt=PROMPT))
        for i in range(3)
    ]
    assert {row["temperature"] for row in rows} == {1.0}
    assert shared == {"temperature": 1.0}
    validation = training | {"validate": True}
    assert ask(shared, validation, session_id=0, raw_prompt=PROMPT) == shared
