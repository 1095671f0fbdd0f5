"""Compute advantages with verl behind a guarded agent loop and workers, in verl's environment."""

import asyncio
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import ray
from transformers import AutoTokenizer
from verl import DataProto
from verl.experimental.reward_loop import RewardLoopManager

from grpo_guard.adapters.verl.actor import NAME
from grpo_guard.adapters.verl.agent_loop import GuardedAgentLoopManagerV0
from tests.across.same_rows import POLICIES, ROWS, SIZE, TEXTS, guard_file
from tests.verl.tiny_verl import GUARDED, QUESTION, advantages, batch, compose, save_tokenizer

UIDS = [str(i // SIZE) for i in range(len(ROWS))]
FUNCTION = (
    "reward.custom_reward_function.path=pkg://tests.across.same_rows",
    "reward.custom_reward_function.name=compute_score",
)


def column(values):
    made = np.empty(len(values), dtype=object)
    made[:] = values
    return made


def questions():
    n = len(ROWS)
    return DataProto.from_dict(
        non_tensors={
            "raw_prompt": column([[{"role": "user", "content": QUESTION}]] * n),
            "said": column(TEXTS),
            "uid": column(UIDS),
            "data_source": column(["sums"] * n),
            "reward_model": column([{"ground_truth": "4"}] * n),
            "extra_info": column([{}] * n),
        },
        meta_info={"global_steps": 3},
    )


async def generated(loop):
    """Generate with verl's own agent-loop workers under the guarded manager."""
    handles = loop.reward_loop_worker_handles
    manager = await GuardedAgentLoopManagerV0.create(
        config=loop.config, llm_client=None, reward_loop_worker_handles=handles
    )
    out = await manager.generate_sequences(questions())
    for worker in manager.agent_loop_workers:
        ray.kill(worker)
    out.non_tensor_batch["uid"] = column(UIDS)
    return out


def rewarded(folder, tokenizer, on_reject):
    """Return the rows with verl's rewards and masks; ``on_reject=None`` means no guard."""
    if on_reject is None:
        loop = RewardLoopManager(compose(tokenizer, *FUNCTION))
        data = batch(AutoTokenizer.from_pretrained(tokenizer), TEXTS, UIDS, response=96)
        data = data.union(loop.compute_rm_score(data))
    else:
        loops = Path(folder) / "loops.yaml"
        loops.write_text("- {name: canned, _target_: tests.verl.canned_loop.CannedLoop}\n")
        agent = "actor_rollout_ref.rollout.agent"
        guard = [f"+grpo_guard.config={guard_file(folder, on_reject)}"]
        loop = RewardLoopManager(
            compose(
                tokenizer, *GUARDED, *FUNCTION, *guard, "+grpo_guard.sibling_timeout=60",
                "algorithm.adv_estimator=grpo_guarded",
                f"{agent}.num_workers=1", f"{agent}.default_agent_loop=canned",
                f"{agent}.agent_loop_config_path={loops}",
            )
        )  # fmt: skip
        data = asyncio.run(generated(loop))
    for worker in loop.reward_loop_workers:
        ray.kill(worker)
    if NAME in ray.util.list_named_actors():
        ray.kill(ray.get_actor(NAME))
    while any(n.startswith(("reward", NAME)) for n in ray.util.list_named_actors()):
        time.sleep(0.05)
    return data


def main():
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = save_tokenizer(Path(folder))
        for name in (*POLICIES, "unguarded"):
            data = rewarded(folder, tokenizer, None if name == "unguarded" else name)
            estimator = "grpo" if name == "unguarded" else "grpo_guarded"
            found[name] = {
                str(scaled): advantages(data, estimator, by_std=scaled) for scaled in (False, True)
            }
    ray.shutdown()
    print(json.dumps(found))


main()
