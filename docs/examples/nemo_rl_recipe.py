"""NeMo-RL: a mixin, so that an advantage estimator sees only what stays in a group."""

import torch

from grpo_guard.adapters.received import received
from grpo_guard.adapters.reward_function import require_ids_read
from grpo_guard.adapters.sequences import review_turns
from grpo_guard.guard.graders import finite_or_none


class GuardedAdvantages:
    def compute_advantage(self, prompt_ids, rewards, mask, repeated_batch, **more):
        require_ids_read(self.guard, "NeMo-RL")
        logs = repeated_batch["message_log"]
        turns = [(i, turn) for i, log in enumerate(logs) for turn in rows(log)]
        groups = [tuple(ids) for ids in prompt_ids.tolist()]
        review = review_turns(self.guard, turns).regrouped(groups)
        kept = self.guard.settle(finite_or_none(rewards.tolist()), review)
        stays = [i for i, reward in enumerate(kept) if reward is not None]
        out = [reward is None for reward in kept]
        repeated_batch["loss_multiplier"][out] = 0
        advantages = torch.zeros(mask.shape)
        if stays:
            more = {k: v[stays] if torch.is_tensor(v) else v for k, v in more.items()}
            earned = rewards.new_tensor([kept[i] for i in stays])
            given = (prompt_ids[stays], earned, mask[stays])
            advantages[stays] = super().compute_advantage(*given, **more)
        return advantages


def rows(log):  # a completion for each turn of the model, after the messages before it
    ids = [message["token_ids"].tolist() for message in log]
    said = [j for j, message in enumerate(log) if message["role"] == "assistant"]
    return [received(log[:j], log[j]["content"], completion_ids=ids[j]) for j in said]
