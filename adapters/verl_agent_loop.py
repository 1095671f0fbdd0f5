"""Alias of `grpo_guard.adapters.verl.agent_loop` for verl configurations of 0.1.0."""

from typing import Any

from grpo_guard.adapters.verl import agent_loop


def __getattr__(name: str) -> Any:
    return getattr(agent_loop, name)
