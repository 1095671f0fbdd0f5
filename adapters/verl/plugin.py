"""verl: the entry point of ``verl.plugins``, which verl loads in each of its processes.

Registers the reward manager ``grpo_guard`` and the advantage estimator ``grpo_guarded``, which
computes GRPO's advantages without left-out completions. This module cannot be imported without
verl.

With ``grpo``, a left-out completion keeps its place in the group, with the group's mean as its
score: the mean is unchanged, but the standard deviation shrinks, and advantages grow by
sqrt((n - 1) / (m - 1)) if m of n completions remain. ``grpo_guarded`` excludes the completion from
both. It needs the agent-loop hook, and agent loops with one output per trajectory: if there are
several outputs, verl uses the last one only for ``grpo``.

``grpo_guarded`` also excludes whatever verl's own rollout correction rejects in decoupled mode. A
rejected sequence has an empty mask. Under a token-level ``rollout_rs``, a response whose rewarded
token is rejected keeps the mask of its other tokens; the response is excluded as well, because the
other tokens would be rewarded for a token that is not trusted.
"""

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
    """Compute verl's `compute_grpo_outcome_advantage` over the rows that have tokens to train on
    and whose reward falls on a token that was not rejected; return advantages and returns, [B, R].

    If only a single row of a group remains, there are no others to compare it with: its advantage
    is 0, whereas verl would use its score. Groups of one rollout are left to verl.

    Args:
        token_level_rewards, response_mask: Rewards and mask per response token, [B, R]; a row whose
            mask has no 1 is left out.
        index: Group of each row, [B].
        config: The section ``algorithm`` of verl's configuration.
    """
    import torch

    stays = response_mask.sum(dim=-1) > 0
    if _rejects_tokens(config):
        stays &= ~_pays_for_rejected(token_level_rewards, response_mask)
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


def _rejects_tokens(config: Any) -> bool:
    """Whether verl's rollout correction removes individual tokens before the advantages are
    computed."""
    correction = None if config is None else config.get("rollout_correction")
    options = (correction or {}).get("rollout_rs") or ""
    return any(option.strip().startswith("token_") for option in str(options).split(","))


def _pays_for_rejected(token_level_rewards: Any, response_mask: Any) -> Any:
    """Mask of the rows whose last nonzero reward falls on a token outside the response mask,
    [B]."""
    rewarded = token_level_rewards != 0
    places = rewarded.long().new_ones(rewarded.shape).cumsum(dim=-1)  # 1, 2, ...
    last = (rewarded * places).argmax(dim=-1, keepdim=True)
    return rewarded.any(dim=-1) & (response_mask.gather(-1, last).squeeze(-1) == 0)


register("grpo_guard")(GuardedRewardManager)
register_adv_est("grpo_guarded")(compute_guarded_advantage)
