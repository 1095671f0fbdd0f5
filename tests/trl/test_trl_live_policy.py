"""The whole path: a real GRPOTrainer, its live policy scored at each step, one bad peer in four."""

import random

import pytest
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from grpo_guard import LogProbBoundVerifier, Policy, SamplingSpec, guard
from grpo_guard.evals.policies.bundled import load_bundled
from grpo_guard.evals.tasks.word_problems import WordProblems
from tests.trl.tiny_trl import one_bad_peer

TASK = WordProblems()
STEPS = 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "bf16", [False, True]
)  # True is TRL's default: forward runs under autocast
def test_bad_peer_earns_nothing_while_the_weights_change(tmp_path, bf16):
    model, tok = load_bundled()
    before = model.lm_head.weight.detach().clone()
    rng = random.Random(0)
    problems = [TASK.sample(rng) for _ in range(16)]
    verdicts = []

    class Notes:
        def record(self, batch, found):
            verdicts.extend((c.node, v) for c, v in zip(batch, found, strict=True))

    verifier = LogProbBoundVerifier(
        model, tok, sampling=SamplingSpec("transformers", 1.0, 50, 1.0, max_new_tokens=96)
    )

    @guard(verifier, policy=Policy(on_reject="drop"), ledger=Notes())
    def reward(completions, answer, **kwargs):
        return [TASK.reward(c, a) for c, a in zip(completions, answer, strict=True)]

    trainer = GRPOTrainer(
        model=model,
        reward_funcs=[reward],
        args=GRPOConfig(
            output_dir=str(tmp_path),
            max_steps=STEPS,
            per_device_train_batch_size=16,
            num_generations=4,
            max_completion_length=96,
            learning_rate=1e-3,
            logging_steps=1,
            report_to="none",
            save_strategy="no",
            use_cpu=True,
            bf16=bf16,
            gradient_checkpointing=False,
            disable_tqdm=True,
            seed=0,
        ),
        train_dataset=Dataset.from_list(
            [{"prompt": p.prompt, "answer": p.answer} for p in problems]
        ),
        processing_class=tok,
        rollout_func=one_bad_peer(problems),
    )
    trainer.train()

    bad = [v for node, v in verdicts if node == "peer3"]
    honest = [v for node, v in verdicts if node != "peer3"]
    assert len(bad) == 4 * STEPS
    assert all(v.rejected for v in bad)
    # Rejected honest work would mean that stale weights were scored: they change at each step.
    assert sum(v.rejected for v in honest) == 0
    assert not torch.equal(before, model.lm_head.weight)
    logged = [log for log in trainer.state.log_history if "guard/reject_rate" in log]
    assert len(logged) == STEPS
    assert all(log["guard/reject_rate"] == 0.25 for log in logged)
