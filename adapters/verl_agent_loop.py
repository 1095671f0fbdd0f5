"""Where verl's configurations of 0.1.0 look for `grpo_guard.adapters.verl.agent_loop`."""

from typing import Any

from grpo_guard.adapters.verl import agent_loop


def __getattr__(name: str) -> Any:
    return getattr(agent_loop, name)
