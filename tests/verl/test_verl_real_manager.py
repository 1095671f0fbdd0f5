"""A user's run: YAML guard -> verl's loader -> its reward workers on Ray -> its advantages."""

import asyncio
import time

import pytest
from verl.trainer.ppo.reward import extract_reward, load_reward_manager

from grpo_guard.adapters.verl.actor import NAME
from grpo_guard.evals.policies.bundled import WORD_PROBLEMS
from tests.verl.tiny_verl import (
    FORGED,
    GUARDED,
    HONEST,
    UNGUARDED_FUNCTION,
    WRONG,
    advantages,
    batch,
    guarded_by,
    several_outputs,
)

KEYS = {"guard_accept", "guard_reject", "guard_abstain", "guard_left_out", "guard_siblings"}
KEYS |= {"guard_raw_score"}


def test_group_over_several_workers_keeps_its_baseline(reward_loop, tokenizer):
    loop = reward_loop(sibling_timeout=3600)
    data = batch(tokenizer, [HONEST, FORGED, WRONG, WRONG])
    answer = loop.compute_rm_score(data)
    scores, extra = extract_reward(data.union(answer))
    assert scores.sum(-1).tolist() == pytest.approx([1.0, 1 / 3, 0.0, 0.0])
    assert extra["guard_reject"].tolist() == [0.0, 1.0, 0.0, 0.0]
    assert extra["guard_raw_score"].tolist() == [1.0, 1.0, 0.0, 0.0]
    assert extra["guard_siblings"].tolist() == [4.0] * 4
    assert extra["acc"].tolist() == [1.0, 1.0, 0.0, 0.0]  # the user's own values are unchanged
    assert set(answer.meta_info["reward_extra_keys"]) >= KEYS
    of_three = [2 / 3, 0.0, -1 / 3, -1 / 3]
    assert advantages(data.union(answer)) == pytest.approx(of_three)


def test_collector_loads_the_reader_of_the_guard_file(reward_loop, tokenizer):
    guard = f"preset: different_weights\nreader: {WORD_PROBLEMS}\npolicy: {{on_reject: drop}}\n"
    loop = reward_loop(guard=guard, sibling_timeout=3600)
    data = batch(tokenizer, [HONEST, FORGED, WRONG, WRONG])
    _, extra = extract_reward(data.union(loop.compute_rm_score(data)))
    assert extra["guard_reject"].tolist() == [0.0, 1.0, 0.0, 0.0]
    assert extra["guard_abstain"].tolist() == [0.0] * 4


def test_zero_matches_the_reward_of_the_paper(reward_loop, tokenizer):
    guard = "policy: {on_reject: zero, on_abstain: zero}\nverifier: {type: arithmetic}\n"
    loop = reward_loop(guard=guard, sibling_timeout=3600)
    data = batch(tokenizer, [HONEST, FORGED, WRONG, HONEST])
    data = data.union(loop.compute_rm_score(data))
    assert data.batch["rm_scores"].sum(-1).tolist() == [1.0, 0.0, 0.0, 1.0]
    assert advantages(data) == pytest.approx([0.5, -0.5, -0.5, 0.5])


def test_user_exception_propagates_and_siblings_do_not_wait(reward_loop, tokenizer):
    name = "reward.custom_reward_function.name=failing"
    loop = reward_loop(name, sibling_timeout=3600)
    data = batch(tokenizer, [HONEST, HONEST, WRONG, HONEST])
    with pytest.raises(KeyError, match="the user's own"):
        loop.compute_rm_score(data)
    worker = loop.reward_loop_workers[0]
    import ray

    rows = [worker.compute_score.remote(data[i : i + 1]) for i in range(3)]
    answers = ray.get(rows[:2], timeout=500)  # far below the waiting time for siblings
    assert {a["reward_score"] for a in answers} == {1.0}


def test_failed_grader_is_not_zero_under_failures_only(reward_loop, tokenizer):
    name = "reward.custom_reward_function.name=failing"
    loop = reward_loop(name, guard="preset: failures_only\n", sibling_timeout=3600)
    data = batch(tokenizer, [HONEST, HONEST, WRONG, HONEST])
    answer = loop.compute_rm_score(data)
    assert answer.batch["rm_scores"].sum(-1).tolist() == [1.0] * 4
    assert answer.non_tensor_batch["guard_left_out"].tolist() == [0.0, 0.0, 1.0, 0.0]
    assert advantages(data.union(answer)) == [0.0] * 4


def test_grader_limit_supports_alarms_and_isolates_hangs(reward_loop, tokenizer):
    """verl calls a reward function in threads, which no alarm reaches and nothing can stop."""
    name = "reward.custom_reward_function.name=with_an_alarm"
    loop = reward_loop(name, guard="preset: failures_only\ntimeout: 3\n", sibling_timeout=3600)
    data = batch(tokenizer, [HONEST, HONEST, WRONG, HONEST])
    answer = loop.compute_rm_score(data)
    assert answer.batch["rm_scores"].sum(-1).tolist() == [1.0] * 4
    assert answer.non_tensor_batch["guard_left_out"].tolist() == [0.0, 0.0, 1.0, 0.0]


def test_nan_never_reaches_the_trainer(reward_loop, tokenizer):
    loop = reward_loop("reward.custom_reward_function.name=not_a_number", sibling_timeout=3600)
    data = batch(tokenizer, [HONEST, WRONG, HONEST, HONEST])
    answer = loop.compute_rm_score(data)
    assert answer.batch["rm_scores"].sum(-1).tolist() == [1.0] * 4
    assert answer.non_tensor_batch["guard_left_out"].tolist() == [0.0, 1.0, 0.0, 0.0]
    assert advantages(data.union(answer), by_std=True) == [0.0] * 4


def test_groups_of_one(reward_loop, tokenizer):
    loop = reward_loop("actor_rollout_ref.rollout.n=1")
    data = batch(tokenizer, [HONEST, FORGED, WRONG], uids=["a", "b", "c"])
    data = data.union(loop.compute_rm_score(data))
    # verl uses the score of a group of one as its advantage.
    assert advantages(data) == [1.0, 0.0, 0.0]


def test_dead_collector_abstains_and_is_restarted(reward_loop, tokenizer, ray_cluster):
    loop = reward_loop("actor_rollout_ref.rollout.n=2", sibling_timeout=3600)
    worker = loop.reward_loop_workers[0]
    data = batch(tokenizer, [HONEST, FORGED, HONEST, FORGED], uids=["a", "a", "b", "b"])
    waiting = worker.compute_score.remote(data[0:1])
    deadline = time.monotonic() + 500
    while NAME not in ray_cluster.util.list_named_actors():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    actor = ray_cluster.get_actor(NAME)
    ray_cluster.get(actor.absent.remote("other", 0, 9, 60.0))  # the actor works
    time.sleep(1.0)
    ray_cluster.kill(actor)
    answer = ray_cluster.get(waiting, timeout=500)
    extra = answer["reward_extra_info"]
    assert (extra["guard_abstain"], extra["guard_left_out"], answer["reward_score"]) == (1, 1, 0)
    pair = [worker.compute_score.remote(data[i : i + 1]) for i in (2, 3)]
    answers = ray_cluster.get(pair, timeout=500)
    assert [a["reward_extra_info"]["guard_reject"] for a in answers] == [0.0, 1.0]


def test_last_of_several_outputs_is_graded_to_its_end(configuration, tokenizer, tmp_path):
    """verl 0.9.1 grades a short last output without its end; the manager passes all of it."""
    seen = []

    def compute_score(data_source, solution_str, ground_truth, extra_info=None):
        seen.append(solution_str)
        return 1.0

    async def graded(config, data):
        manager = load_reward_manager(config, tokenizer)
        getattr(manager, "inner", manager).compute_score = compute_score
        return await (manager._graded if hasattr(manager, "inner") else manager.run_single)(data)

    data = several_outputs(tokenizer, ["a long first output of the loop", HONEST])
    asyncio.run(graded(configuration(*UNGUARDED_FUNCTION), data))
    asyncio.run(graded(configuration(*GUARDED, *UNGUARDED_FUNCTION, *guarded_by(tmp_path)), data))
    assert seen[0] != HONEST  # the bug; once it is fixed, this and `last_row` can go
    assert seen[1] == HONEST


WATCH = "policy: {on_reject: keep, on_abstain: skip, max_abstain_rate: 0, abstain_window: 1}\n"
WATCH += "verifier: {all: [{type: arithmetic}, {type: length}]}\n"


def test_watching_guard_leaves_verl_rewards_unchanged(reward_loop, tokenizer):
    """Length abstains without other nodes; no countable abstention stops the run."""
    loop = reward_loop(guard=WATCH, sibling_timeout=3600)
    data = batch(tokenizer, [HONEST, FORGED, WRONG, WRONG])
    answer = loop.compute_rm_score(data)
    scores, extra = extract_reward(data.union(answer))
    assert scores.sum(-1).tolist() == [1.0, 1.0, 0.0, 0.0]
    assert extra["guard_reject"].tolist() == [0.0, 1.0, 0.0, 0.0]
    assert extra["guard_left_out"].tolist() == [0.0] * 4
    assert advantages(data.union(answer)) == pytest.approx([0.5, 0.5, -0.5, -0.5])


def test_watching_guard_leaves_verl_nan_unchanged(reward_loop, tokenizer):
    name = "reward.custom_reward_function.name=not_a_number"
    loop = reward_loop(name, guard=WATCH, sibling_timeout=3600)
    unseen = loop.compute_rm_score(batch(tokenizer, [HONEST, FORGED, WRONG, WRONG]))
    # The NaN are verl's own.
    assert str(unseen.batch["rm_scores"].sum(-1).tolist()) == "[1.0, 1.0, nan, nan]"
