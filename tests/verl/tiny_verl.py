"""A tokenizer, a configuration and rows for verl's real code, small enough for any machine."""

import json

import numpy as np

QUESTION = "What is 2 + 2?"
HONEST = "2 + 2 = 4 #### 4"
WRONG = "I do not know #### 7"
FORGED = "2 + 2 = 5 and so #### 4"  # the right answer, by wrong arithmetic

GUARD_YAML = """
policy: {on_reject: drop, on_abstain: skip}
verifier:
  all:
    - {type: arithmetic}
    - {type: screens}
"""


def save_tokenizer(folder):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.train_from_iterator(
        [QUESTION],
        trainers.BpeTrainer(
            vocab_size=300,
            special_tokens=["<pad>", "<eos>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<eos>")
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    )
    tokenizer.save_pretrained(folder)
    # All that verl's hf_tokenizer() requires of a model.
    (folder / "config.json").write_text(
        json.dumps({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]})
    )
    return str(folder)


def compose(tokenizer_folder, *overrides, name="ppo_trainer"):
    from hydra import compose, initialize_config_module

    base = [
        f"actor_rollout_ref.model.path={tokenizer_folder}",
        "actor_rollout_ref.rollout.name=vllm",
        "actor_rollout_ref.rollout.n=4",
        "actor_rollout_ref.rollout.response_length=64",
        "actor_rollout_ref.rollout.prompt_length=64",
        "reward.num_workers=2",
        "algorithm.adv_estimator=grpo",
    ]
    with initialize_config_module(config_module="verl.trainer.config", version_base=None):
        return compose(name, overrides=[*base, *overrides])


GUARDED = (
    "reward.reward_manager.source=importlib",
    "reward.reward_manager.name=GuardedRewardManager",
    "reward.reward_manager.module.path=pkg://grpo_guard.adapters.verl.manager",
)
HOOK = (
    "+actor_rollout_ref.rollout.agent.agent_loop_manager_class="
    "grpo_guard.adapters.verl.agent_loop.GuardedAgentLoopManager"
)
UNGUARDED_FUNCTION = (
    "reward.custom_reward_function.path=pkg://tests.verl.sums_reward",
    "reward.custom_reward_function.name=compute_score",
)


def guarded_by(folder, text=GUARD_YAML, **more):
    """The overrides of a user whose guard is in a file."""
    file = folder / "guard.yaml"
    file.write_text(text)
    own = [f"+grpo_guard.{name}={value}" for name, value in more.items()]
    return [f"+grpo_guard.config={file}", *own]


def batch(tokenizer, texts, uids=None, prompt=24, response=48):
    """A batch padded as verl does: prompts on the left, responses on the right."""
    import torch
    from verl import DataProto

    rows = []
    for text in texts:
        q, a = tokenizer(QUESTION)["input_ids"], tokenizer(text)["input_ids"]
        a = [*a, tokenizer.eos_token_id]
        assert len(q) <= prompt
        assert len(a) <= response
        pad_q, pad_a = [0] * (prompt - len(q)), [0] * (response - len(a))
        mask = [0] * len(pad_q) + [1] * (len(q) + len(a)) + pad_a
        rows.append((pad_q + q, a + pad_a, mask))
    prompts, responses, mask = (torch.tensor(column) for column in zip(*rows, strict=True))
    n = len(texts)

    def column(values):
        made = np.empty(n, dtype=object)
        made[:] = values
        return made

    return DataProto.from_dict(
        tensors={
            "prompts": prompts,
            "responses": responses,
            "attention_mask": mask,
            "input_ids": torch.cat([prompts, responses], 1),
            "position_ids": (mask.cumsum(1) - 1).clamp(min=0),
            "response_mask": mask[:, prompt:],
        },
        non_tensors={
            "data_source": column(["sums"] * n),
            "uid": column(uids or ["a"] * n),
            "reward_model": column([{"style": "rule", "ground_truth": "4"}] * n),
            "extra_info": column([{"index": i} for i in range(n)]),
            "raw_prompt": column([[{"role": "user", "content": QUESTION}]] * n),
        },
    )


def advantages(data, estimator="grpo", by_std=False):
    """Advantages by verl's own code: one number per row, at its first token."""
    from verl.trainer.ppo.core_algos import AdvantageEstimator
    from verl.trainer.ppo.ray_trainer import compute_advantage

    data.batch["token_level_rewards"] = data.batch["rm_scores"]
    config = {"norm_adv_by_std_in_grpo": by_std}
    if estimator == "grpo":
        estimator = AdvantageEstimator.GRPO
    done = compute_advantage(data, estimator, norm_adv_by_std_in_grpo=by_std, config=config)
    return done.batch["advantages"][:, 0].tolist()


def several_outputs(tokenizer, texts):
    """As the agent loop's worker sends a trajectory: all rows padded on the right."""
    import torch
    from tensordict import TensorDict
    from verl import DataProto

    prompts = [tokenizer("q" * (8 - 6 * i))["input_ids"] for i in range(len(texts))]
    responses = [tokenizer(text)["input_ids"] for text in texts]
    pad = torch.nn.utils.rnn.pad_sequence
    both = [torch.tensor(p + r) for p, r in zip(prompts, responses, strict=True)]
    n = len(texts)
    masks = [torch.ones_like(ids) for ids in both]
    tensors = {
        "prompts": pad([torch.tensor(p) for p in prompts], batch_first=True),
        "responses": pad([torch.tensor(r) for r in responses], batch_first=True),
        "attention_mask": pad(masks, batch_first=True),
        "input_ids": pad(both, batch_first=True),
        "position_ids": pad(both, batch_first=True),
    }
    columns = {
        "data_source": np.array(["sums"] * n),
        "reward_model": np.array([{"ground_truth": "4"}] * n),
        "extra_info": np.array([{}] * n),
        "prompt_len": np.array([len(p) for p in prompts]),
        "response_len": np.array([len(r) for r in responses]),
    }
    return DataProto(batch=TensorDict(tensors, batch_size=n), non_tensor_batch=columns)
