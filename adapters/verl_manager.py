"""Alias of `grpo_guard.adapters.verl.manager` for verl configurations of 0.1.0."""

from grpo_guard.adapters.verl.manager import GuardedRewardManager

__all__ = ["GuardedRewardManager"]
