"""verl: a custom reward function, ``compute_score``.

verl calls ``compute_score(data_source=, solution_str=, ground_truth=, extra_info=, **more)`` for
one completion at a time, expects a number or a dict with ``"score"``, and passes on whatever it is
given. So the guarded function treats a reward of None, NaN or infinity like a rejected completion.

From here, a guard sees little: no token ids, no group, and no prompt unless the data set puts one
into ``extra_info`` (otherwise the prompt is the empty string, and verifiers that score tokens given
the prompt are of no use). Each call is a batch of one, so ``Policy.abstain_window`` counts
completions. The manager in `verl.manager` sees token ids, prompts and whole groups.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from grpo_guard.adapters.received import Row, claimed, received, review
from grpo_guard.adapters.reward_function import (
    RewardFunction,
    require_one,
    rewards_only,
    settled_finite,
)
from grpo_guard.core.completion import shown
from grpo_guard.guard import Guard, Review

_FROM_VERL: Final = {
    "data_source",
    "solution_str",
    "ground_truth",
    "extra_info",
    "reward_router_address",
    "reward_model_tokenizer",
}


class VerlAdapter:
    """Guards a ``compute_score`` function, sync or async."""

    recognised_by: ClassVar = frozenset({"solution_str", "ground_truth"})

    def wrap(self, reward: Any, guard: Guard) -> Any:
        """Wrap a reward function. If the function returns a dict, only its ``"score"`` changes.

        Raises:
            FrameworkError: the reward is a list (verl takes one function) or not a function, or the
                policy leaves completions out of their group.
        """
        require_one(reward, "verl")
        guard = rewards_only(guard, "verl")
        function = RewardFunction.inspect(reward, guard)

        def arguments(given: Mapping[str, Any]) -> dict[str, Any]:
            # Other keywords come from ``reward_kwargs``, where a mistyped name must raise an error.
            accepted = function.arguments(given)
            return {k: v for k, v in given.items() if k in accepted or k not in _FROM_VERL}

        def look(**given: Any) -> Review:
            return review(guard, [row_from(given)])

        def settle(found: Review, result: Any, /, **given: Any) -> Any:
            scored = isinstance(result, Mapping)
            if scored and "score" not in result:
                raise ValueError(
                    f"{function.name}: expected a dict with 'score', got {shown(result)}"
                )
            rewards = function.rewards([result["score"] if scored else result], 1)
            # verl does not check rewards: one NaN makes all advantages of its group NaN.
            (score,) = settled_finite(guard, found, rewards)
            return {**result, "score": score} if scored else score

        # verl recognises an async function, but not an object with an async __call__, whose
        # coroutine would become the reward. The wrapper is a function in either case.
        wrapped = function.guarded(guard, look, settle, arguments)
        wrapped.guard = guard  # lets a guarded reward manager refuse to guard it twice
        return wrapped


def row_from(kwargs: Mapping[str, Any]) -> Row:
    """Build the completion from verl's keywords; ``task`` is the data source. The prompt is the
    first of ``prompt``, ``raw_prompt`` and ``question`` in ``extra_info`` that is a string, a list
    or an array."""
    extra = kwargs.get("extra_info")
    found = [claimed(extra, key) for key in ("prompt", "raw_prompt", "question")]
    prompts = [p for p in found if isinstance(p, str | list | tuple) or getattr(p, "ndim", 0) == 1]
    return received(
        prompts[0] if prompts else "",
        kwargs["solution_str"],
        node=claimed(extra, "node", "peer"),
        reference=kwargs.get("ground_truth"),
        task=kwargs.get("data_source"),
    )
