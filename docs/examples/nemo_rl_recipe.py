"""NeMo-RL: a mixin before an advantage estimator, which then sees only what stays in a group."""

import torch

from grpo_guard.adapters.received import received
from grpo_guard.adapters.reward_function import require_ids_read
from grpo_guard.adapters.sequences import review_turns
from grpo_guard.graders import finite_or_none


class GuardedAdvantages:
    def compute_advantage(self, prompt_ids, rewards, mask, repeated_batch, **more):
        require_ids_read(self.guard, "NeMo-RL")
        turns = [(i, t) for i, log in enumerate(repeated_batch["message_log"]) for t in rows(log)]
        review = review_turns(self.guard, turns).regrouped([tuple(p) for p in prompt_ids.tolist()])
        kept = self.guard.settle(finite_or_none(rewards.tolist()), review)
        stays = [i for i, reward in enumerate(kept) if reward is not None]
        repeated_batch["loss_multiplier"][[i for i, r in enumerate(kept) if r is None]] = 0
        advantages = torch.zeros(mask.shape)
        if stays:
            more |= {k: v[stays] for k, v in more.items() if isinstance(v, torch.Tensor)}
            given = (prompt_ids[stays], rewards.new_tensor([kept[i] for i in stays]), mask[stays])
            advantages[stays] = super().compute_advantage(*given, **more)
        return advantages


def rows(log):  # a completion for each turn of the model, after the messages before it
    ids = [message["token_ids"].tolist() for message in log]
    said = [j for j, message in enumerate(log) if message["role"] == "assistant"]
    return [received(log[:j], log[j]["content"], completion_ids=ids[j]) for j in said]
