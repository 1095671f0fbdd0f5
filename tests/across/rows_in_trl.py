"""Compute advantages with TRL's GRPOTrainer, guarded and unguarded; runs in TRL's environment."""

from grpo_guard.adapters.trl.trainer import GuardedTrainer
from tests.across.same_rows import ROWS, SIZE, TEXTS, print_advantages, reward_of
from tests.trl import tiny_trl


class Guarded(tiny_trl.Captures, GuardedTrainer, tiny_trl.GRPOTrainer):
    pass


def rewards(completions, **columns):
    return [reward_of(text) for text in completions]


def advantages(folder, guard, scaled):
    kind, extra = (tiny_trl.CapturingTrainer, {}) if guard is None else (Guarded, {"guard": guard})
    trainer = tiny_trl.trainer(
        folder, rewards, kind=kind, extra=extra, rollout=tiny_trl.peers(*TEXTS), max_steps=1,
        per_device_train_batch_size=len(ROWS), num_generations=SIZE, max_completion_length=96,
        scale_rewards="group" if scaled else "none",
    )  # fmt: skip
    trainer.train()
    (found,) = trainer.captured
    return found


print_advantages(advantages)
