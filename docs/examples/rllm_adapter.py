"""rLLM: reward functions ``f(task_info, action)`` that return RewardOutput or float."""

import dataclasses
from typing import Any

from grpo_guard import Guard
from grpo_guard.adapters.received import Row, received, review
from grpo_guard.adapters.reward_function import RewardFunction, rewards_only
from grpo_guard.guard.framework import FrameworkError


class RLLMAdapter:
    def wrap(self, reward: Any, guard: Guard) -> Any:
        """The guarded form; of a `RewardOutput` only ``reward`` changes."""
        if isinstance(reward, list | tuple):
            problem = "rLLM takes one reward function, got a list; guard that one"
            raise FrameworkError(problem)
        guard = rewards_only(guard, "rLLM")  # every reward enters its group's baseline
        function = RewardFunction.inspect(reward, guard)
        if function.is_async:
            raise FrameworkError(f"{function.name}: rLLM does not await rewards")

        def guarded(task_info: dict[str, Any], action: Any) -> Any:
            found = review(guard, [row_from(task_info, action)])
            given = {"task_info": task_info, "action": action}
            output = function.ask(**function.arguments(given))
            scored = dataclasses.is_dataclass(output)
            rewards = function.rewards([output.reward if scored else output], 1)
            (kept,) = guard.settle(rewards, found)
            return dataclasses.replace(output, reward=kept) if scored else kept

        return function.dress(guarded)


def row_from(task_info: dict[str, Any], action: Any) -> Row:
    for name in ("action", "text"):  # workflows put a ModelOutput into an Action
        action = getattr(action, name, action)
    prompt = task_info.get("question", "")
    truth = task_info.get("ground_truth")
    return received(prompt, action, reference=truth)  # never raises
