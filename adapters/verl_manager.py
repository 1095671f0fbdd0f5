"""Where verl's configurations of 0.1.0 look for `grpo_guard.adapters.verl.manager`."""

from grpo_guard.adapters.verl.manager import GuardedRewardManager

__all__ = ["GuardedRewardManager"]
