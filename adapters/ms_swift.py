"""ms-swift: the reward functions of its GRPO trainer, which follow TRL's conventions.

ms-swift calls ``f(completions, **columns, trainer_state=)`` with the completions as the positional
argument and the conversations, answers included, in the column ``messages``. It sums the functions'
rewards and counts None as 0, so a completion cannot leave its group. Tested with the scoring code
of ms-swift 4.6.0 (swift/rl_core/grpo_algorithm.py), which all its GRPO trainers call.

Its reward functions do not receive token ids, so verifiers that score tokens see text.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from grpo_guard.adapters.reward_function import RewardFunction, fitted, without_leaving_out
from grpo_guard.adapters.trl.reward import GuardedReward, inspected
from grpo_guard.guard import Guard


class MsSwiftAdapter:
    """Guards ms-swift reward functions; functions that share a guard share one verification per
    batch."""

    def wrap(self, reward: Any, guard: Guard) -> Any:
        """Wrap a function or an ``ORM`` object, or each item of a list, in a plain function:
        ms-swift names objects by their class, so two wrapper objects would share a name.

        Raises:
            FrameworkError: an item is not a function, two functions have the same name, or the
                policy leaves completions out of their group.
        """
        cannot = without_leaving_out("ms-swift")
        del cannot["on_long", "scale"]  # ms-swift passes whole groups
        guard = fitted(guard, "ms-swift", cannot)
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
    """The batch's keywords as TRL would pass them; prompts are the messages before the answer."""
    messages = own.get("messages")
    if not isinstance(messages, list | tuple):
        return {**own, "prompts": None}  # the batch reports it as missing
    # Values other than conversations are passed on; the batch then reports them for their row.
    return {**own, "prompts": [c[:-1] if isinstance(c, list | tuple) else c for c in messages]}
