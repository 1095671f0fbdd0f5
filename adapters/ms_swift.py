"""ms-swift: reward functions of its GRPO trainer, which is TRL's in other clothes.

ms-swift calls ``f(completions, **columns, trainer_state=)`` with the completions by position and
the conversations, answers included, in the column ``messages``. It sums the functions with None as
0, so that a completion cannot be left out of its group. Tested with the scoring of ms-swift 4.6.0
(swift/rl_core/grpo_algorithm.py), which all its GRPO trainers call.

Token ids do not reach a reward function there: verifiers that score tokens see text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grpo_guard.adapters.reward_function import (
    RewardFunction,
    chosen_policy,
    without_leaving_out,
)
from grpo_guard.adapters.trl.reward import GuardedReward, inspected
from grpo_guard.guard import Guard


class MsSwiftAdapter:
    """Guards ms-swift reward functions, with one verification per batch for all of a guard's."""

    def wrap(self, reward: Any, guard: Guard) -> Any:
        """The guarded form of a function or an ``ORM`` object, or of each in a list.

        Always a plain function: ms-swift names objects by their class, and two would be one.

        Raises:
            FrameworkError: something is no function, two have the same name, or the policy leaves
                completions out of their group.
        """
        cannot = without_leaving_out("ms-swift")
        del cannot["on_long", "scale"]  # it shows whole groups
        guard = guard.with_policy(chosen_policy(guard.policy, "ms-swift", cannot))
        together = isinstance(reward, list | tuple)
        functions = inspected(reward if together else [reward], guard)
        wrapped = [_wrap_one(function, guard) for function in functions]
        return wrapped if together else wrapped[0]


def _wrap_one(function: RewardFunction, guard: Guard) -> Any:
    reward = GuardedReward(function, guard)
    if function.is_async:

        async def guarded_async(completions: Sequence[Any], **columns: Any) -> Any:
            own = {"completions": completions, **columns}
            return await reward.acall(own, **_as_of_trl(own))

        return function.dress(guarded_async)

    def guarded(completions: Sequence[Any], **columns: Any) -> Any:
        own = {"completions": completions, **columns}
        return reward(own, **_as_of_trl(own))

    return function.dress(guarded)


def _as_of_trl(own: Mapping[str, Any]) -> dict[str, Any]:
    """TRL's keywords for the same batch: the prompts are the messages before the answer."""
    messages = own.get("messages")
    if not isinstance(messages, list | tuple):
        return {**own, "prompts": None}  # which the batch says is missing
    # What is no conversation is no prompt either, and the batch says so of its row.
    return {**own, "prompts": [c[:-1] if isinstance(c, list | tuple) else c for c in messages]}
