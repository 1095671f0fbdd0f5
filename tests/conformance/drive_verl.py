"""Run the cases through verl behind a guarded agent loop and workers; runs in verl's environment.

Everything is verl's own (agent-loop and reward workers, rollout correction, advantages) except the
language model, which returns canned answers.
"""

import asyncio
import json
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from verl import DataProto
from verl.experimental.agent_loop.agent_loop import AgentLoopManager
from verl.experimental.reward_loop import RewardLoopManager
from verl.trainer.ppo.core_algos import AdvantageEstimator, agg_loss
from verl.trainer.ppo.ray_trainer import compute_advantage
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
from verl.utils import tensordict_utils as tu

from grpo_guard.adapters.verl.actor import NAME
from grpo_guard.adapters.verl.agent_loop import (
    GuardedAgentLoopManager,
    GuardedAgentLoopManagerV0,
)
from tests.conformance.conformance_cases import (
    CASES,
    DENIED,
    FANNED_OUT,
    FINAL,
    FORGED,
    GARBLED,
    JUDGED,
    MASKED,
    OF_A_GROUP,
    SCAFFOLD,
    SCAFFOLDED,
    SIBLING,
    SIZE,
    guard_file,
    reward_of,
)
from tests.verl.tiny_verl import GUARDED, QUESTION, compose, save_tokenizer

FUNCTION = (
    "reward.custom_reward_function.path=pkg://tests.conformance.drive_verl_rewards",
    "reward.custom_reward_function.name=compute_score",
)
GROUPS = {
    "rejected_sibling": SIBLING,
    "rejected_group": OF_A_GROUP,
    "judges_zero": JUDGED,
    "scaffold": [f"[{SCAFFOLD}]{text}" + "!longer" * (i == 2) for i, text in enumerate(SCAFFOLDED)],
}


def column(values):
    made = np.empty(len(values), dtype=object)
    made[:] = values
    return made


def questions(name):
    said = GROUPS[name]
    return DataProto.from_dict(
        non_tensors={
            "raw_prompt": column([[{"role": "user", "content": QUESTION}]] * SIZE),
            "said": column(said),
            "uid": column([name] * SIZE),
            "data_source": column(["sums"] * SIZE),
            "reward_model": column([{"ground_truth": "4"}] * SIZE),
            "extra_info": column([{}] * SIZE),
        },
        meta_info={"global_steps": 3},
    )


async def created(loop, kind):
    return await kind.create(
        config=loop.config,
        llm_client=None,
        reward_loop_worker_handles=loop.reward_loop_worker_handles,
    )


def fanned_out(loop, guarded):
    """Trajectories of several outputs, through verl's TransferQueue and its advantages for them.

    Only verl's current trainer accepts them, and only for ``grpo``.
    """
    manager = asyncio.run(created(loop, GuardedAgentLoopManager if guarded else AgentLoopManagerTQ))
    uid = f"fan{guarded}"
    said = [" | ".join(segments) for segments in FANNED_OUT]
    row = {
        "raw_prompt": [{"role": "user", "content": QUESTION}], "said": said, "uid": uid,
        "data_source": "sums", "reward_model": {"ground_truth": "4"}, "extra_info": {}, "index": 0,
    }  # fmt: skip
    data = tu.get_tensordict({k: [v] for k, v in row.items()}, {"global_steps": 5})
    tq.kv_batch_put(keys=[uid], partition_id="train", tags=[{"status": "pending"}])
    manager.generate_sequences(data)
    deadline = time.monotonic() + 200
    while tq.kv_list("train")["train"][uid]["status"] not in ("finished", "failure"):
        if time.monotonic() > deadline:
            raise TimeoutError("the queue")
        time.sleep(0.2)
    keys = sorted(key for key in tq.kv_list("train")["train"] if key.startswith(f"{uid}_"))
    found = tq.kv_batch_get(keys, "train", ["response_mask", "rm_scores"])
    for worker in manager.agent_loop_workers:
        ray.kill(worker)
    pad = torch.nn.utils.rnn.pad_sequence
    mask, scores = (
        pad([row.flatten() for row in found[name].unbind()], batch_first=True)
        for name in ("response_mask", "rm_scores")
    )
    batch = DataProto.from_dict(
        tensors={"response_mask": mask.long(), "token_level_rewards": scores.float()},
        non_tensors={"uid": column([uid] * len(keys))},
    )
    done = compute_advantage_for_multi_trajectories(
        batch, keys, AdvantageEstimator.GRPO, norm_adv_by_std_in_grpo=False,
        config=OmegaConf.create({"norm_adv_by_std_in_grpo": False}),
    )  # fmt: skip
    return [
        float(a[kept][0]) if kept.any() else None
        for a, kept in zip(done.batch["advantages"], mask.bool(), strict=True)
    ]


async def generated(loop, kind):
    """Per group, the result of verl's agent-loop workers, or the exception that stopped it."""
    manager = await created(loop, kind)
    found = {}
    for name in GROUPS:
        try:
            found[name] = await manager.generate_sequences(questions(name))
            found[name].non_tensor_batch["uid"] = column([name] * len(found[name]))
        except Exception as error:
            found[name] = getattr(error, "cause", None) or error
    for worker in manager.agent_loop_workers:
        ray.kill(worker)
    return found


def rolled_out(folder, tokenizer, guarded):
    """Return the groups with verl's rewards and masks, or the exception that stopped one."""
    loops = Path(folder) / "loops.yaml"
    loops.write_text("- {name: canned, _target_: tests.conformance.drive_verl_rewards.Canned}\n")
    agent = "actor_rollout_ref.rollout.agent"
    own = ()
    if guarded:
        own = (
            *GUARDED, f"+grpo_guard.config={guard_file(Path(folder))}",
            "+grpo_guard.sibling_timeout=20",
            "algorithm.adv_estimator=grpo_guarded",
        )  # fmt: skip
    loop = RewardLoopManager(
        compose(
            tokenizer, *own, *FUNCTION, f"{agent}.num_workers=1",
            f"{agent}.default_agent_loop=canned", f"{agent}.agent_loop_config_path={loops}",
            "actor_rollout_ref.rollout.response_length=96",
        )
    )  # fmt: skip
    kind = GuardedAgentLoopManagerV0 if guarded else AgentLoopManager
    found = asyncio.run(generated(loop, kind))
    found["fan_out"] = fanned_out(loop, guarded)
    for worker in loop.reward_loop_workers:
        ray.kill(worker)
    if NAME in ray.util.list_named_actors():
        ray.kill(ray.get_actor(NAME))
    while any(n.startswith(("reward", NAME)) for n in ray.util.list_named_actors()):
        time.sleep(0.05)
    return found


def advantages(data, guarded, correction=None):
    """Return the advantage of each row (None for one without a trained token) and the batch."""
    data.batch["token_level_rewards"] = data.batch["rm_scores"]
    chosen = OmegaConf.create({"rollout_is": None, **(correction or {})})
    if correction is not None:
        data, _ = compute_rollout_correction_and_add_to_batch(data, chosen)
    config = OmegaConf.create({"norm_adv_by_std_in_grpo": False, "rollout_correction": chosen})
    name = "grpo_guarded" if guarded else AdvantageEstimator.GRPO
    done = compute_advantage(data, name, norm_adv_by_std_in_grpo=False, config=config)
    mask = done.batch["response_mask"].bool()
    values = done.batch["advantages"]
    return [
        float(row[kept][0]) if kept.any() else None for row, kept in zip(values, mask, strict=True)
    ], done


def corrected(texts, guarded, off, token=None):
    """A batch with work for verl's own rollout correction: row ``off`` was sampled elsewhere."""
    n, tokens = len(texts), 4
    old, rollout = torch.full((n, tokens), -1.0), torch.full((n, tokens), -1.0)
    rollout[off, slice(None) if token is None else token] = -3.0
    scores = torch.zeros(n, tokens)
    scores[:, -1] = torch.tensor([reward_of(text) for text in texts])
    data = DataProto.from_dict(
        tensors={
            "old_log_probs": old, "rollout_log_probs": rollout,
            "response_mask": torch.ones(n, tokens), "rm_scores": scores,
        },
        non_tensors={"uid": column(["a"] * n)},
    )  # fmt: skip
    kind = "seq_sum_k1" if token is None else "token_k1"
    found, _ = advantages(data, guarded, {"rollout_rs": kind, "rollout_rs_threshold": "0.5_2.0"})
    return found


def of_batch(data, guarded):
    """A batch that is rejected as a whole: verl's own loss under each of its aggregations."""
    found, done = advantages(data, guarded)
    mask = done.batch["response_mask"].float()
    ratio = torch.zeros_like(mask, requires_grad=True)
    values = -done.batch["advantages"] * ratio.exp()
    loss = agg_loss(values, mask, "seq-mean-token-mean", global_batch_size=SIZE)
    loss.backward()
    by_token = float(agg_loss(values.detach(), mask, "token-mean"))
    return found, loss, float(ratio.grad.abs().max()), by_token


def verdicts(data, folder):
    """Outcomes as reported to verl, with the cause that the guard's log has for the text."""
    info = {k: data.non_tensor_batch[f"guard_{k}"] for k in ("accept", "reject", "abstain")}
    said = [next(k for k in info if info[k][i]) for i in range(len(data))]
    lines = (folder / "verdicts.jsonl").read_text().splitlines()
    logged = [line for line in map(json.loads, lines) if "accepted" not in line]
    texts = [str(text) for text in GROUPS[data.non_tensor_batch["uid"][0]]]
    return [
        [outcome, "judged" if outcome == "accept" else cause_of(text, outcome, logged)]
        for outcome, text in zip(said, texts, strict=True)
    ]


def cause_of(text, outcome, logged):
    marks = [mark for mark in (GARBLED, DENIED, FORGED) if mark in text]
    for line in logged:
        seen = json.dumps(line)
        malformed = not marks and line["cause"] == "malformed"
        if line["outcome"] == outcome and (malformed or any(m.strip() in seen for m in marks)):
            return line["cause"]
    return "none"


def cells(found, guarded, folder):
    made = {}
    for name, data in found.items():
        if isinstance(data, Exception):
            made[name] = {"error": f"{type(data).__name__}: {data!s:.300}"}
            continue
        if name == "fan_out":
            made[name] = {"advantages": data}
            continue
        made[name] = {"advantages": advantages(data, guarded)[0]}
        if guarded and CASES[name].verdicts is not None:
            made[name]["verdicts"] = verdicts(data, Path(folder))
    group = made["rejected_group"]
    group["advantages"] = group["advantages"] + made["rejected_sibling"]["advantages"]
    rows, loss, moved, by_token = of_batch(found["rejected_group"], guarded)
    rate = None
    if guarded:
        rate = float(np.mean(found["rejected_group"].non_tensor_batch["guard_reject"]))
    made["rejected_batch"] = {
        "advantages": rows, "loss": "finite" if loss.isfinite() else str(float(loss)),
        "moved": moved, "reject_rate": rate,
    }  # fmt: skip
    if not np.isfinite(by_token):
        note = (
            f"`loss_agg_mode: token-mean` gives {by_token}, see [verl](verl.md#the-agent-loop-hook)"
        )
        made["rejected_batch"]["note"] = note
    made["masked_row"] = {"advantages": corrected(MASKED, guarded, 1)}
    final = corrected(FINAL, guarded, 0, token=-1)
    if guarded and final[0] == 0.0:
        final[0] = None  # the row's other tokens keep their mask and have advantage 0
    made["final_token"] = {"advantages": final}
    why = "verl asks about each rollout by itself"
    made["wrong_count"] = {"absent": why}
    return made


def main():
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    tq.init()
    both = {}
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = save_tokenizer(Path(folder))
        for key in ("alone", "guarded"):
            found = rolled_out(folder, tokenizer, key == "guarded")
            both[key] = cells(found, key == "guarded", folder)
    ray.shutdown()
    made = {name: {key: both[key][name] for key in both} for name in CASES}
    print(json.dumps({"release": f"verl {version('verl')}", "cases": made}))


main()
