"""AReaL: a reward function, and a workflow that guards whole groups.

`ArealAdapter` guards ``reward_fn(prompt, completions, prompt_ids, completion_ids, **data)``. AReaL
calls the function in a pool of processes, so it must be defined in a module, and each process has
its own guard. A call that raises is retried up to three times, and a call that takes 15 s counts as
a reward of 0. `ArealAdapter` cannot leave completions out.

`GuardedGroup` can (docs/other-trainers.md): it runs the episodes of a group itself and settles them
together. AReaL drops an episode that is None, but its normalisation splits the batch into groups of
a fixed size: one missing episode shifts every later group onto its neighbours' rewards, and a group
left with three of its four episodes got advantages of 100,000. With `GuardedGroup`, an episode that
failed or was left out keeps its place, with the mean reward of the remaining episodes and an empty
loss mask. It still counts toward the standard deviation and a leave-one-out mean.

Tested with AReaL 1.0.4: api/reward_api.py, api/workflow_api.py, infra/remote_inf_engine.py,
utils/data.py (`Normalization`, `concat_padded_tensors`).
"""

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from grpo_guard.adapters.received import Row, claimed, received, review
from grpo_guard.adapters.reward_function import (
    RewardFunction,
    fitted,
    graded,
    require_one,
    rewards_only,
    settled_finite,
    without_lengths,
)
from grpo_guard.adapters.sequences import review_turns, rows_from_ids
from grpo_guard.core.arguments import require_count
from grpo_guard.core.detokenizer import Detokenizer
from grpo_guard.guard import Guard, Review
from grpo_guard.guard.framework import FrameworkError
from grpo_guard.guard.graders import FAILED, finite_or_none
from grpo_guard.guard.settled_groups import SettledGroups, settle_groups
from grpo_guard.guard.settlement import refuse_abstentions

_ORDER: Final = ("prompt", "completions", "prompt_ids", "completion_ids")


class ArealAdapter:
    """Guards a reward function of AReaL's predefined workflows."""

    # A superset of the names that identify TRL, so AReaL is preferred.
    recognised_by: ClassVar = frozenset(_ORDER)

    def wrap(self, reward: Any, guard: Guard) -> Any:
        """Wrap a reward function in a guarded one with the same signature.

        Raises:
            FrameworkError: the reward is a list, not a function, or an async function (AReaL calls
                it in a process); or the policy leaves completions out of their group.
        """
        require_one(reward, "AReaL")
        guard = rewards_only(guard, "AReaL")
        function = RewardFunction.inspect(reward, guard)
        if function.is_async:
            raise FrameworkError(f"{function.name}: AReaL does not await a reward function")

        def look(*args: Any, **data: Any) -> Review:
            return review(guard, [row_from(dict(zip(_ORDER, args, strict=False)) | data)])

        def settle(found: Review, result: Any, /, *args: Any, **data: Any) -> float:
            return settled_finite(guard, found, function.rewards([result], 1))[0]

        return function.guarded(guard, look, settle)


def row_from(given: Mapping[str, Any]) -> Row:
    """Build the completion from AReaL's arguments; the reference is the data's ``answer`` (or
    ``solution``). The text is the workflow's decoding of its own ids, unless ``node`` names another
    sender."""
    node = claimed(given, "node")
    return received(
        given.get("prompt", ""),
        given.get("completions"),
        decoded=node is None,
        prompt_ids=given.get("prompt_ids"),
        completion_ids=given.get("completion_ids"),
        node=node,
        reference=claimed(given, "answer", "solution"),
    )


class GuardedGroup:
    """Runs a workflow ``size`` times and settles the episodes as one group.

    AReaL recognises a workflow by its class: derive a class from `GuardedGroup` and
    `RolloutWorkflow`, in that order.

    Args:
        workflow: An AReaL workflow whose episodes are dicts of single-row tensors.
        guard: The guard that judges and settles. With ``failures``, an episode that raises is left
            out in the same way as one that is None.
        size: Number of episodes per group.
        tokenizer: The policy's tokenizer, or a `Detokenizer`. Defaults to the workflow's tokenizer.
            If the data names a ``node``, that node's ids are malformed if they contain special
            tokens other than one that closes a turn.

    Raises:
        FrameworkError: the policy asks for something that AReaL cannot do.
        ValueError: ``size`` is below 1.
    """

    def __init__(self, workflow: Any, guard: Guard, size: int, tokenizer: Any = None) -> None:
        require_count("GuardedGroup.size", size)
        self.guard = fitted(guard, "AReaL", without_lengths("AReaL"))
        self.workflow, self.size = workflow, size
        self.detokenizer = Detokenizer.of(workflow.tokenizer if tokenizer is None else tokenizer)

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> dict[str, Any] | None:
        """Run and settle a group; return it as one dict of tensors, or None if no episode was
        returned. Called by AReaL.

        Raises:
            AbstainError: the policy says to raise, or the guard abstained on too many completions.
            FrameworkError: the workflow returns something other than one row of tensors.
        """
        name, run = type(self.workflow).__name__, self.workflow.arun_episode
        runs = [graded(self.guard, name, run, engine, data) for _ in range(self.size)]
        episodes = [_checked(episode) for episode in await asyncio.gather(*runs)]
        came = [episode for episode in episodes if episode is not None]
        if not came:
            return None
        turns = [(i, row) for i, one in enumerate(came) for row in self._rows(one, data)]
        found = await asyncio.to_thread(review_turns, self.guard, turns)
        from areal.utils.data import concat_padded_tensors

        if self.guard.policy.watches:
            refuse_abstentions(self.guard.policy, found.verdicts)
            watched: dict[str, Any] = concat_padded_tensors(came)
            return watched
        given = finite_or_none([float(episode["rewards"][0]) for episode in came])
        settled = settle_groups(self.guard, given, found.regrouped(None))
        kept = iter(settled.kept)
        rows = [
            _with(came[0] if one is None else one, None if one is None else next(kept), settled)
            for one in episodes
        ]
        group: dict[str, Any] = concat_padded_tensors(rows)
        return group

    def _rows(self, episode: Mapping[str, Any], data: Mapping[str, Any]) -> list[Row]:
        length, node = int(episode["attention_mask"][0].sum()), claimed(data, "node")
        return rows_from_ids(
            episode["input_ids"][0][:length].tolist(),
            [bool(drawn) for drawn in episode["loss_mask"][0][:length].tolist()],
            self.detokenizer,
            own=node is None,
            log_probs=episode["logprobs"][0][:length].tolist(),
            node=node,
            reference=claimed(data, "answer", "solution"),
        )


def _checked(episode: Any) -> Any:
    if episode is None or episode is FAILED:
        return None
    if not isinstance(episode, Mapping) or len(episode.get("input_ids", ())) != 1:
        raise FrameworkError(
            "AReaL: GuardedGroup: expected a workflow whose episode is a dict of tensors "
            "with one row, such as RLVRWorkflow; got something else"
        )
    return episode


def _with(
    episode: Mapping[str, Any], reward: float | None, settled: SettledGroups
) -> dict[str, Any]:
    """Return a copy of the episode with its guarded reward; an episode that is left out (reward
    None) gets the group's mean and an empty loss mask."""
    made = dict(episode)
    made["rewards"] = episode["rewards"].new_tensor([settled.mean() if reward is None else reward])
    if reward is None:
        made["loss_mask"] = episode["loss_mask"].new_zeros(episode["loss_mask"].shape)
    return made
