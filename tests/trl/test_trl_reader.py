"""The policy in training as the reader: a real GRPOTrainer whose reward it guards."""

import copy
import random

import pytest

pytest.importorskip("trl")

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from grpo_guard import presets
from grpo_guard.evals.attacks.text import TextAttack
from grpo_guard.evals.policies.bundled import load_bundled
from grpo_guard.evals.tasks.word_problems import WordProblems

TASK = WordProblems()
STEPS = 3
PEERS = 4


def exchange(problems):
    """Three peers send solutions, the fourth the same with the phrase."""
    by_prompt = {problem.prompt: problem for problem in problems}

    def rollout(prompts, trainer):
        tok = trainer.processing_class
        texts = [by_prompt[prompt].solution for prompt in prompts]
        for i in range(PEERS - 1, len(prompts), PEERS):
            texts[i] = TextAttack().poison(by_prompt[prompts[i]], random.Random(i)).text
        return {
            "prompt_ids": [tok.encode(prompt) for prompt in prompts],
            "completion_ids": [[*tok.encode(text), tok.eos_token_id] for text in texts],
            "logprobs": None,
            "peer": [f"peer{i % PEERS}" for i in range(len(prompts))],
        }

    return rollout


@pytest.mark.slow
@pytest.mark.parametrize("with_frozen", [False, True])
def test_policy_in_training_is_the_reader(tmp_path, with_frozen):
    model, tok = load_bundled()
    frozen = copy.deepcopy(model) if with_frozen else None
    before = model.lm_head.weight.detach().clone()
    rng = random.Random(0)
    problems = [TASK.sample(rng) for _ in range(8 * STEPS)]

    @presets.different_weights(model, tok, frozen=frozen)
    def reward(completions, answer, **kwargs):
        rights = [TASK.reward(c, a) for c, a in zip(completions, answer, strict=True)]
        return [right * (1 - i % 2 / 2) for i, right in enumerate(rights)]  # something to learn

    trainer = GRPOTrainer(
        model=model,
        reward_funcs=[reward],
        args=GRPOConfig(
            output_dir=str(tmp_path),
            max_steps=STEPS,
            per_device_train_batch_size=8 * PEERS,
            num_generations=PEERS,
            max_completion_length=96,
            learning_rate=1e-4,
            logging_steps=1,
            report_to="none",
            save_strategy="no",
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_tqdm=True,
            shuffle_dataset=False,
            seed=0,
        ),
        train_dataset=Dataset.from_list(
            [{"prompt": p.prompt, "answer": p.answer} for p in problems]
        ),
        processing_class=tok,
        rollout_func=exchange(problems),
    )
    trainer.train()

    assert not torch.equal(before, model.lm_head.weight)
    logged = [log for log in trainer.state.log_history if "guard/reject_rate" in log]
    assert len(logged) == STEPS
    assert all(log["guard/abstain_rate"] == 0 for log in logged)
    assert "guard/reject_rate/reader" in logged[-1]
    assert sum(log[f"guard/node/peer{i}/reject"] for log in logged for i in range(3)) == 0
    if frozen is None:
        assert logged[-1]["guard/reject_rate/reader"] == 1 / PEERS
        assert logged[-1]["guard/node/peer3/reject"] == 8
    else:  # two models need twice as many sentences before they decide anything
        assert torch.equal(before, frozen.lm_head.weight)
