"""verl: the entry point of ``verl.plugins``, which verl loads in each of its processes.

Registers the reward manager ``grpo_guard`` and the advantage estimator ``grpo_guarded``: GRPO's
advantages without what the guard left out. Without verl it cannot be imported.

    algorithm.adv_estimator=grpo_guarded

With ``grpo`` a left-out completion keeps its place in its group with the group's mean as its score:
the mean stays, but the standard deviation shrinks, and advantages grow by
sqrt((n - 1) / (m - 1)) where m of n stay. This estimator leaves it out of both. It needs the
agent-loop hook, and agent loops with one output a trajectory: verl takes the last of several for
``grpo`` only.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from verl.experimental.reward_loop.reward_manager import register
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage, register_adv_est

from grpo_guard.adapters.verl.manager import GuardedRewardManager


def compute_guarded_advantage(
    token_level_rewards: Any,
    response_mask: Any,
    index: Any,
    config: Any = None,
    **more: Any,
) -> tuple[Any, Any]:
    """verl's `compute_grpo_outcome_advantage` over the rows that train something.

    Who is the last of a group has nobody to be compared with: its advantage is 0, where verl would
    take its score for one. Groups of one rollout are verl's own business and stay as they are.

    Args:
        token_level_rewards, response_mask: [B, R]; rows without any 1 are left out.
        index: Group of each row, [B].
        config: verl's ``algorithm``.

    Returns:
        Advantages and returns, [B, R].
    """
    import torch

    stays = response_mask.sum(dim=-1) > 0
    rows = stays.nonzero().squeeze(-1)
    advantages = torch.zeros_like(token_level_rewards)
    if len(rows):
        by_std = True if config is None else config.get("norm_adv_by_std_in_grpo", True)
        advantages[rows] = compute_grpo_outcome_advantage(
            token_level_rewards[rows],
            response_mask[rows],
            index[rows.cpu().numpy()],
            norm_adv_by_std_in_grpo=by_std,
        )[0]
    before = Counter(index.tolist())
    after = Counter(index[stays.cpu().numpy()].tolist())
    for row in rows.tolist():
        if after[index[row]] == 1 < before[index[row]]:
            advantages[row] = 0.0
    return advantages, advantages


register("grpo_guard")(GuardedRewardManager)
register_adv_est("grpo_guarded")(compute_guarded_advantage)
