"""Guarded agents in the real OpenRLHF when the reward, the guard or the engine fails."""

import asyncio
import logging

import pytest

pytest.importorskip("openrlhf", reason="needs openrlhf: make test-openrlhf")

from grpo_guard import AbstainError
from tests.openrlhf.openrlhf_parts import (
    MAX_LENGTH,
    PROMPT,
    TOKENIZER,
    Engine,
    actor,
    advantages_of,
    group,
    params,
    run,
)
from tests.openrlhf.test_openrlhf_agent import GUARD_LOGS, SAID, THIRD, of_group


@pytest.mark.parametrize("text", ["nan", "crash"])
def test_failed_reward_is_left_out_and_logs_the_same_names(agent_file, text, caplog):
    with caplog.at_level(logging.ERROR, logger="grpo_guard"):
        responses = of_group(agent_file(), "It is 7.", "It is 8.", f"It is 7. {text}", "7")
    found, _ = advantages_of(responses, "dr_grpo")
    assert found == pytest.approx([THIRD, -2 * THIRD, 0.0, THIRD], abs=1e-6)
    assert {frozenset(r["extra_logs"]) for r in responses} == {frozenset(GUARD_LOGS | {"length"})}
    assert "left out of their group" in caplog.text
    # Even if all samples of a later group fail.
    loaded = actor(Engine("It is 7."), agent_file())
    run(loaded, 1)
    loaded.generate = Engine(text, text).generate
    later = run(loaded, 2)
    assert [r["reward"] for r in later] == [0.0, 0.0]
    assert frozenset(later[0]["extra_logs"]) == frozenset(GUARD_LOGS | {"length"})


def test_missing_rewards_from_the_start_stop_the_run(agent_file, caplog):
    responses = of_group(agent_file(), "crash", "crash")
    assert [r["reward"] for r in responses] == [None, None]
    assert "without any reward" in caplog.text


def test_permanently_broken_reward_function_stops_the_run(agent_file):
    loaded = actor(Engine("It is 7."), agent_file("abstain_window=2"))
    rewards = [run(loaded, 1)[0]["reward"]]
    loaded.generate = Engine("crash").generate
    rewards += [run(loaded, 1)[0]["reward"] for _ in range(3)]
    assert rewards == [1.0, 0.0, 0.0, None]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("on_abstain='skip'", [THIRD, -2 * THIRD, 0.0, THIRD]),
        ("on_abstain='zero'", [0.5, -0.5, -0.5, 0.5]),
        ("on_abstain='pass'", [0.25, -0.75, 0.25, 0.25]),
    ],
)
def test_abstentions_follow_the_policy(agent_file, policy, expected):
    for text in ("It is 7, unseen.", "It is 7, break."):
        responses = of_group(agent_file(policy), "It is 7.", "It is 8.", text, "7")
        assert advantages_of(responses, "dr_grpo")[0] == pytest.approx(expected, abs=1e-6)
        assert responses[2]["extra_logs"]["guard_abstain"] == 1.0


@pytest.mark.parametrize("policy", ["", "on_reject='drop'", "on_abstain='pass'"])
def test_failing_guard_leaves_its_group_out_and_warns(agent_file, policy, caplog):
    responses = of_group(agent_file(policy, ledger="FullDisk()"))
    found, kl = advantages_of(responses, "group_norm", kl=0.25)
    assert found == [0.0] * 4
    assert kl == [0.25] * 4
    assert "disk full" in caplog.text
    assert {frozenset(r["extra_logs"]) for r in responses} == {frozenset(GUARD_LOGS | {"length"})}


def test_too_many_abstentions_leave_groups_out_unless_the_policy_raises(agent_file, caplog):
    loaded = actor(Engine("unseen 7"), agent_file("on_abstain='pass', abstain_window=2"))
    rewards = [run(loaded, 1)[0]["reward"] for _ in range(3)]
    assert rewards == [1.0, 0.0, 0.0]
    assert "abstained on 2 of 2" in caplog.text
    with pytest.raises(AbstainError, match="words abstained"):
        of_group(agent_file("on_abstain='raise'"), "It is 7.", "unseen 7")


def test_engine_error_propagates_and_leaves_no_state(agent_file):
    loaded = actor(Engine(*SAID, fails_at=1), agent_file())

    async def first_and_then():
        with pytest.raises(RuntimeError, match="engine died"):
            await group(loaded, 4)
        await asyncio.sleep(0.2)

    asyncio.run(first_and_then())
    assert loaded.executor._siblings._open == {}
    (batch,) = loaded.executor.guard.verifier.batches
    assert [c.text for c in batch] == [SAID[0], *SAID[2:]]


def test_cancelled_sample_does_not_affect_the_others(agent_file):
    loaded = actor(Engine(*SAID), agent_file())
    executor, shared = loaded.executor, params()

    async def cancel_one():
        tasks = [
            asyncio.create_task(
                executor.execute(PROMPT, "7", shared, MAX_LENGTH, TOKENIZER, loaded)
            )
            for _ in range(4)
        ]
        await asyncio.sleep(0.015)
        tasks[0].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    answers = asyncio.run(cancel_one())
    assert isinstance(answers[0], asyncio.CancelledError)
    # Left-out samples have the mean of those that remain.
    assert [r["reward"] for r in answers[1:]] == [0.0, 0.5, 1.0]
