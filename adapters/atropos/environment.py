"""Atropos, inside an environment's process: guard the groups that the environment posts.

The mixin changes the result of `postprocess_histories`, the last step before groups are sent, saved
and logged."""

import asyncio
from collections import Counter
from typing import Any, ClassVar

from grpo_guard.adapters.atropos.groups import GroupGuard
from grpo_guard.core.cached_property import cached_property
from grpo_guard.guard import Guard


class GuardedEnv:
    """Mixin that guards a `BaseEnv`; list it before the environment in a class's bases, and set
    ``guard`` in the class.

    Raises:
        FrameworkError: the policy asks for something that Atropos cannot do.
        AbstainError: the policy says to raise, or the guard abstained on too many rows. Atropos
            logs exceptions raised here and posts nothing.
    """

    guard: ClassVar[Guard]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._guard_counts: Counter[str] = Counter()
        _ = self._groups  # refuses a policy that cannot be carried out, before the first rollout

    @cached_property
    def _groups(self) -> GroupGuard:
        tokenizer: Any = self.tokenizer  # type: ignore[attr-defined]
        return GroupGuard(self.guard, tokenizer, vocabulary=len(tokenizer))

    async def postprocess_histories(self, trajectories: Any) -> Any:
        """Guard the result of Atropos's hook: a group, a list of groups, or None for a failure."""
        made = await super().postprocess_histories(trajectories)  # type: ignore[misc]
        if isinstance(made, list):
            return [group and await self._guarded(group) for group in made]
        return made and await self._guarded(made)

    async def _guarded(self, group: Any) -> Any:
        round = getattr(self, "curr_step", None)
        settled, review = await asyncio.to_thread(self._groups.settle, group, round=round)
        self._guard_counts.update(verdict.outcome.value for verdict in review.verdicts)
        return settled

    async def wandb_log(self, wandb_metrics: dict[str, Any] | None = None) -> None:
        """Log what Atropos's hook logs, plus the shares of accepted, rejected and abstained rows
        since the last call."""
        counts, self._guard_counts = self._guard_counts, Counter()
        shares = {f"guard/{k}_rate": n / counts.total() for k, n in counts.items()}
        await super().wandb_log({**(wandb_metrics or {}), **shares})  # type: ignore[misc]
