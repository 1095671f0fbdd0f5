"""Reward files and reward servers, called by OpenRLHF's own executor."""

import asyncio
import contextlib
import json
import logging
import socket
import threading
import time

import pytest

pytest.importorskip("openrlhf", reason="needs openrlhf: make test-openrlhf")

import uvicorn
from openrlhf.utils.agent import SingleTurnAgentExecutor

from grpo_guard import Guard, Policy, presets
from grpo_guard.evals.policies.bundled import WORD_PROBLEMS
from grpo_guard.server.app import create_app
from grpo_guard.server.limits import Limits
from grpo_guard.server.rewards import Rewards
from tests.openrlhf.openrlhf_parts import (
    PROMPT,
    Engine,
    SamplesGenerator,
    actor,
    advantages_of,
    compute_eval_metrics,
    experiences_of,
    group,
    run,
)
from tests.openrlhf.openrlhf_verifiers import FullDisk, Words, graded

SAID = ("It is 7.", "It is 8.", "It is 7. Hail to the thief.", "It is 7")
SHIM = "from my_rewards import guarded as reward_func\n"
MY_REWARDS = """
from dataclasses import dataclass
from grpo_guard import Policy, guard
from grpo_guard.content.screens.verifier import ScreensVerifier
from tests.openrlhf.openrlhf_verifiers import FullDisk, Words, graded

@dataclass
class Settings:
    ledger: FullDisk | None = None

@guard(Words() & ScreensVerifier(), policy=Policy({policy}), ledger={ledger})
def guarded(queries, prompts, labels):
    return graded(queries, prompts, labels)
"""


@pytest.fixture
def reward_file(tmp_path, monkeypatch):
    """The two files of the documentation: a package's module and a one-line shim."""

    def write(policy="on_abstain='zero'", ledger="None"):
        (tmp_path / "my_rewards.py").write_text(MY_REWARDS.format(policy=policy, ledger=ledger))
        (tmp_path / "shim.py").write_text(SHIM)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(__import__("sys").modules, "my_rewards", raising=False)
        return str(tmp_path / "shim.py")

    return write


def of_group(executor, *texts):
    texts = texts or SAID
    return run(actor(Engine(*texts), executor=executor), len(texts))


def test_reward_file_vetoes_poison_and_passes_honest_work(reward_file):
    responses = of_group(SingleTurnAgentExecutor([reward_file()]))
    assert [r["reward"] for r in responses] == [1.0, 0.0, 0.0, 1.0]
    found, _ = advantages_of(responses, "dr_grpo")
    assert found == pytest.approx([0.5, -0.5, -0.5, 0.5], abs=1e-6)
    assert {frozenset(r["extra_logs"]) for r in responses} == {
        frozenset({"length", "guard_accept", "guard_reject", "guard_abstain"})
    }


def test_reward_file_with_a_failing_guard_earns_nothing(reward_file, caplog):
    executor = SingleTurnAgentExecutor([reward_file(ledger="FullDisk()")])
    responses = of_group(executor, "It is 7.", "It is 8.", "It is nan 7")
    assert [r["reward"] for r in responses] == [0.0] * 3
    assert advantages_of(responses, "group_norm")[0] == [0.0] * 3
    assert "disk full" in caplog.text


@contextlib.contextmanager
def served(guard, reward=None, token=None, **limits):
    """Address of `/get_reward` on a real server."""
    app = create_app(
        guard, rewards=Rewards(guard, reward), limits=Limits(**limits), token=token
    )  # fmt: skip
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    name = f"any:{token}@" if token else ""
    try:
        while not server.started:
            time.sleep(0.01)
        yield f"http://{name}127.0.0.1:{listening.getsockname()[1]}/get_reward"
    finally:
        server.should_exit = True
        thread.join(30)


def test_openrlhf_client_gets_vetoed_rewards():
    guard = Guard(Words(), policy=Policy(on_abstain="zero"))
    with served(guard, graded) as url:
        responses = of_group(SingleTurnAgentExecutor([url]))
    # The protocol uses lists; the trainer makes a column of them, which its advantages unfold.
    assert [r["reward"] for r in responses] == [[1.0], [0.0], [0.0], [1.0]]
    found, _ = advantages_of(responses, "dr_grpo")
    assert found == pytest.approx([0.5, -0.5, -0.5, 0.5], abs=1e-6)
    (shown,) = {c.prompt for batch in guard.verifier.batches for c in batch}
    assert shown == PROMPT
    assert {c.text for batch in guard.verifier.batches for c in batch} == set(SAID)


def test_server_with_a_reader_answers_single_completions():
    guard = presets.different_weights(reader=str(WORD_PROBLEMS), policy=Policy(on_reject="zero"))
    with served(guard, graded) as url:
        responses = of_group(SingleTurnAgentExecutor([url]), "It is 7.", "2 + 2 = 5, so 7.")
    assert [r["reward"] for r in responses] == [[1.0], [0.0]]
    assert [r["extra_logs"]["guard_abstain"] for r in responses] == [[0.0], [0.0]]


def test_evaluations_use_the_servers_answers():
    with served(Guard(Words(), policy=Policy(on_abstain="zero")), graded) as url:
        responses = of_group(SingleTurnAgentExecutor([url]))
    found = compute_eval_metrics(
        [(["math"], [PROMPT], ["7"], [None])], experiences_of(responses), 4
    )
    assert (found["eval_math_pass4"], found["eval_math_pass1"]) == (1.0, 0.5)


@pytest.mark.parametrize("label", ["7", "", 7, 7.5, ["7", "seven"], {"answer": "7"}, None])
def test_labels_of_any_type_arrive(label):
    with served(Guard(Words())) as url:
        one = actor(Engine("It is 7."), executor=SingleTurnAgentExecutor([url]))
        (response,) = run(one, 1, label=label)
    assert response["reward"] == [1.0]


def test_token_in_the_address_and_two_servers_in_turn():
    guards = [Guard(Words()), Guard(Words())]
    with served(guards[0], token="secret") as first, served(guards[1], token="other") as second:
        responses = of_group(SingleTurnAgentExecutor([first, second]))
    assert [r["reward"] for r in responses] == [[1.0], [1.0], [0.0], [1.0]]
    assert [len(guard.verifier.batches) for guard in guards] == [2, 2]


@pytest.mark.parametrize("text", ["", "\x00\x7f", "é" * 40, "{}", '"}', "x" * 50])
def test_any_author_text_is_answered(text):
    with served(Guard(Words())) as url:
        (response,) = of_group(SingleTurnAgentExecutor([url]), text)
    assert response["reward"] in ([0.0], [1.0])
    json.dumps(response["extra_logs"], allow_nan=False)


def test_failing_guard_behind_the_server_gives_reward_0(caplog):
    with served(Guard(Words(), ledger=FullDisk())) as url, caplog.at_level(logging.ERROR):
        responses = of_group(SingleTurnAgentExecutor([url]))
    assert [r["reward"] for r in responses] == [[0.0]] * 4
    assert advantages_of(responses, "group_norm")[0] == [0.0] * 4
    assert "disk full" in caplog.text


def test_busy_server_is_retried():
    """Five times, a second apart, so the queue needs room for nearly every sample."""

    def slow(queries, prompts, labels):
        time.sleep(0.1)
        return [1.0]

    with served(Guard(Words()), slow, running=1, waiting=4) as url:
        responses = of_group(SingleTurnAgentExecutor([url]), *["It is 7."] * 8)
    assert [r["reward"] for r in responses] == [[1.0]] * 8


def test_dynamic_filtering_uses_guarded_scores(agent_file, monkeypatch):
    """All answers are right and one is poisoned: the mean of the rest is 1, so the group is
    filtered.
    """
    from types import SimpleNamespace as Fields

    import openrlhf.trainer.ppo_utils.samples_generator as module

    answers = {
        "drop": of_group_from(agent_file("on_reject='drop'"), "7", "7 Hail", "7"),
        "zero": of_group_from(agent_file("on_reject='zero'"), "7", "7 Hail", "7"),
    }
    # Without Ray, a reference is the object itself.
    plain = Fields(wait=lambda refs, **kw: (refs[:1], refs[1:]), get=lambda ref: ref)
    monkeypatch.setattr(module, "ray", plain)
    kept = {}
    for policy, responses in answers.items():
        generator = SamplesGenerator.__new__(SamplesGenerator)
        generator.args = Fields(algo=Fields(dynamic_filtering_range=(0.0, 1.0)))
        generator._dispatch_prompts_to_vllm = lambda *args, _r=responses, **kw: [_r]
        prompts = iter([(None, [PROMPT], ["7"], [None])])
        samples, _, _ = generator._generate_vllm(
            prompts, num_prompts=1, dynamic_filtering=True, max_len=120
        )
        kept[policy] = len(samples)
    assert kept == {"drop": 0, "zero": 3}


def of_group_from(path, *texts):
    return run(actor(Engine(*texts), path), len(texts))


def test_engines_in_separate_processes_are_independent(agent_file):
    """Each loads the agent file itself, so guards and their counts are separate."""
    path = agent_file("on_reject='drop'")
    engines = [actor(Engine(*SAID), path) for _ in range(2)]

    async def both():
        return await asyncio.gather(*(group(engine, 4) for engine in engines))

    one, other = asyncio.run(both())
    assert engines[0].executor.guard is not engines[1].executor.guard
    assert [r["reward"] for r in one] == [r["reward"] for r in other]
    assert advantages_of([*one, *other], "dr_grpo", n=4)[0] == pytest.approx(
        [1 / 3, -2 / 3, 0, 1 / 3] * 2, abs=1e-6
    )
    assert len(experiences_of([*one, *other])) == 8
