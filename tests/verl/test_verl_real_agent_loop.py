"""The agent-loop hook in verl's own workers, on Ray; only the language model is missing."""

import asyncio
import time

import numpy as np
import pytest

from tests.verl.tiny_verl import FORGED, HONEST, QUESTION, WRONG, advantages

TOOL = "2 + 2 = 4 says I [2 + 2 = 5] so #### 4"  # the tool is wrong, the model is not


@pytest.fixture
def overrides(tmp_path):
    loops = tmp_path / "loops.yaml"
    loops.write_text("- {name: canned, _target_: tests.verl.canned_loop.CannedLoop}\n")
    agent = "actor_rollout_ref.rollout.agent"
    return [
        f"{agent}.num_workers=1",
        f"{agent}.default_agent_loop=canned",
        f"{agent}.agent_loop_config_path={loops}",
    ]


@pytest.fixture
def made(reward_loop, ray_cluster, overrides):
    """A guarded manager of verl's agent loops together with its reward workers."""
    managers = []

    def make(name, *more, **own):
        import grpo_guard.adapters.verl.agent_loop as hook

        loop = reward_loop(*overrides, *more, **own)
        handles = loop.reward_loop_worker_handles
        kind = getattr(hook, name)

        async def create():
            return await kind.create(
                config=loop.config, llm_client=None, reward_loop_worker_handles=handles
            )

        managers.append(asyncio.run(create()))
        return managers[-1]

    yield make
    for manager in managers:
        for worker in manager.agent_loop_workers:
            ray_cluster.kill(worker)


def column(values):
    made = np.empty(len(values), dtype=object)
    made[:] = values
    return made


def rows(said, uids):
    n = len(said)
    return {
        "raw_prompt": column([[{"role": "user", "content": QUESTION}]] * n),
        "said": column(said),
        "uid": column(uids),
        "data_source": column(["sums"] * n),
        "reward_model": column([{"ground_truth": "4"}] * n),
        "extra_info": column([{}] * n),
    }


def generate(manager, said, uids=None, **meta):
    from verl import DataProto

    data = DataProto.from_dict(
        non_tensors=rows(said, uids or ["a"] * len(said)), meta_info={"global_steps": 3, **meta}
    )

    async def go():
        return await manager.generate_sequences(data)

    return asyncio.run(go())


def test_left_out_rows_are_in_no_loss_and_no_baseline(made):
    manager = made("GuardedAgentLoopManagerV0", sibling_timeout=3600)
    said = [HONEST, FORGED, WRONG, WRONG]
    out = generate(manager, said)
    assert out.non_tensor_batch["guard_left_out"].tolist() == [0.0, 1.0, 0.0, 0.0]
    assert (out.batch["response_mask"].sum(-1) > 0).tolist() == [True, False, True, True]
    assert out.batch["rm_scores"].sum(-1).tolist() == pytest.approx([1.0, 1 / 3, 0.0, 0.0])
    out.non_tensor_batch["uid"] = column(["a"] * 4)
    kept = [2 / 3, 0.0, -1 / 3, -1 / 3]
    assert advantages(out) == pytest.approx(kept)
    assert advantages(out, "grpo_guarded") == pytest.approx(kept)
    std = (1 / 3) ** 0.5
    exact = [x / std for x in kept]
    assert advantages(out, "grpo_guarded", by_std=True) == pytest.approx(exact, abs=1e-5)
    grown = [x * (3 / 2) ** 0.5 for x in exact]
    assert advantages(out, by_std=True) == pytest.approx(grown, abs=1e-5)
    # Tools may return anything.
    out = generate(manager, [TOOL, HONEST, WRONG, WRONG])
    assert out.non_tensor_batch["guard_left_out"].tolist() == [0.0] * 4
    # A reward computed by the agent loop itself is guarded too.
    out = generate(manager, [f"own reward {said}" for said in (FORGED, HONEST, WRONG, HONEST)])
    assert out.non_tensor_batch["guard_left_out"].tolist() == [1.0, 0.0, 0.0, 0.0]
    assert out.non_tensor_batch["guard_raw_score"].tolist() == [9.0] * 4
    # Validation trains nothing and is not judged; it has one answer per prompt and waits for none.
    out = generate(manager, [FORGED, HONEST], ["v", "w"], validate=True)
    assert out.batch["rm_scores"].sum(-1).tolist() == [1.0, 1.0]
    assert out.non_tensor_batch["guard_reject"].tolist() == [0.0, 0.0]
    assert (out.batch["response_mask"].sum(-1) > 0).all()


def test_in_bypass_mode_no_mask_is_emptied(made):
    bypass = "algorithm.rollout_correction.bypass_mode=True"
    manager = made("GuardedAgentLoopManagerV0", bypass, sibling_timeout=3600)
    out = generate(manager, [HONEST, FORGED, WRONG, WRONG])
    assert out.non_tensor_batch["guard_left_out"].tolist() == [0.0, 1.0, 0.0, 0.0]
    assert (out.batch["response_mask"].sum(-1) > 0).all()
    out.non_tensor_batch["uid"] = column(["a"] * 4)
    assert advantages(out) == pytest.approx([2 / 3, 0.0, -1 / 3, -1 / 3])


def test_watching_guard_leaves_every_mask_unchanged(made):
    watch = "policy: {on_reject: keep, on_abstain: skip}\nverifier: {type: arithmetic}\n"
    manager = made("GuardedAgentLoopManagerV0", guard=watch, sibling_timeout=3600)
    out = generate(manager, [HONEST, FORGED, WRONG, FORGED])
    assert out.non_tensor_batch["guard_reject"].tolist() == [0.0, 1.0, 0.0, 1.0]
    assert out.non_tensor_batch["guard_left_out"].tolist() == [0.0] * 4
    assert (out.batch["response_mask"].sum(-1) > 0).all()
    assert out.batch["rm_scores"].sum(-1).tolist() == [1.0, 1.0, 0.0, 1.0]
    out.non_tensor_batch["uid"] = column(["a"] * 4)
    assert advantages(out, "grpo_guarded") == advantages(out)
    out = generate(manager, [f"own reward {said}" for said in (FORGED, HONEST, WRONG, HONEST)])
    assert out.batch["rm_scores"].sum(-1).tolist() == [9.0] * 4


def test_v1_rows_in_the_transfer_queue(made):
    import transfer_queue as tq
    from verl.utils import tensordict_utils as tu

    tq.init()
    manager = made("GuardedAgentLoopManager", sibling_timeout=3600)
    several = f"{FORGED} | {HONEST}"  # the forged output is not the one that is graded
    groups = [[HONEST, FORGED, WRONG, WRONG], [HONEST, "abort", several, WRONG]]
    data = tu.get_tensordict(
        {name: values.tolist() for name, values in rows(groups, ["p", "q"]).items()}
        | {"index": [0, 1]},
        {"global_steps": 5},
    )
    tq.kv_batch_put(keys=["p", "q"], partition_id="train", tags=[{"status": "pending"}] * 2)
    manager.generate_sequences(data)
    deadline = time.monotonic() + 500  # far below the waiting time for siblings
    while True:
        tags = tq.kv_list("train")["train"]
        if {tags["p"]["status"], tags["q"]["status"]} <= {"finished", "failure"}:
            break
        assert time.monotonic() < deadline, tags
        time.sleep(0.5)
    assert [tags[uid]["status"] for uid in "pq"] == ["finished", "failure"]
    keys = sorted(set(tags) - {"p", "q"})
    assert keys == ["p_0_0", "p_1_0", "p_2_0", "p_3_0", "q_0_0", "q_2_0", "q_2_1", "q_3_0"]
    found = tq.kv_batch_get(keys, "train", ["response_mask", "rm_scores", "extra_fields"])
    trains = [bool(m.sum()) for m in found["response_mask"].unbind()]
    assert trains == [True, False, True, True, True, False, False, True]
    scores = [float(s.sum()) for s in found["rm_scores"].unbind()]
    assert scores == pytest.approx([1.0, 1 / 3, 0.0, 0.0, 1.0, 0.5, 0.5, 0.0])
    assert all("grpo_guard" not in extra for extra in list(found["extra_fields"]))
