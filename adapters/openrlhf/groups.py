"""OpenRLHF: collect a prompt's samples, and settle them once all have been judged.

Each sample is executed separately, but an engine starts all samples of a prompt at once, in a
single `asyncio.gather`, and the trainer waits for all of them. So the number of samples need not be
declared: each sample yields to the event loop once before it begins, so that its siblings can
start. And no sample waits longer for its siblings than the trainer would anyway, so there is no
timeout: it would split groups without saving any time.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from grpo_guard.adapters.flagged_tokens import Span
from grpo_guard.adapters.openrlhf.rollout import Rollout, number
from grpo_guard.core.verdict import accept
from grpo_guard.guard import Guard, Review
from grpo_guard.guard.settled_groups import SettledGroups


def settle_group(
    guard: Guard, rollouts: Sequence[Rollout], found: Review | None, *, mask_spans: bool
) -> list[tuple[dict[str, Any], bool]]:
    """Return each sample's answer, without its logs, and whether the sample is left out. If
    ``found``, the review, is None, the guard could not judge, and all samples are left out. With
    ``mask_spans``, rejected samples lose flagged tokens and keep their reward. Raises AbstainError
    if the policy says to raise, and TypeError or ValueError if a reward is not a number."""
    masked = _masked(rollouts, found if mask_spans else None)

    def settled(raw: Sequence[float | None]) -> list[float | None]:
        if found is None:
            return [None] * len(raw)
        # Samples that lose tokens stay in their group: "no_gain" compares with them as well.
        verdicts = [
            accept(verdict.verifier) if m else verdict
            for verdict, m in zip(found.verdicts, masked, strict=True)
        ]
        kept = guard.settle(raw, replace(found, verdicts=verdicts))
        return [k if k is not None and math.isfinite(k) else None for k in kept]

    raw = [number(rollout.response.get("reward")) for rollout in rollouts]
    scored = [number(rollout.response.get("scores")) for rollout in rollouts]
    rewards = settled(raw)
    scores = settled([r if s is None else s for r, s in zip(raw, scored, strict=True)])
    # A sample without its own tokens cannot earn a reward, because that would train the prompt's
    # tokens. A repaired sample is not its author's work, so it is never trained on.
    out = [
        reward is None or not rollout.turns or rollout.problem is not None
        for reward, rollout in zip(rewards, rollouts, strict=True)
    ]
    filled, filled_scores = (SettledGroups.of(v, out=out).filled for v in (rewards, scores))
    answers = []
    for i, rollout in enumerate(rollouts):
        left_out = out[i]
        answer = {
            **rollout.response,
            "reward": filled[i],
            "scores": filled_scores[i],
            "action_ranges": rollout.least() if left_out else masked[i] or rollout.ranges(),
        }
        if left_out and "truncated" in answer:
            # A penalty for truncation would move a left-out sample away from the mean.
            answer["truncated"] = False
        answers.append((answer, left_out))
    return answers


def _masked(rollouts: Sequence[Rollout], found: Review | None) -> list[list[Span] | None]:
    """The action ranges of each rejected sample without its flagged tokens; None for a sample from
    which no tokens are removed."""
    if found is None:
        return [None] * len(rollouts)
    return [
        rollout.without_flagged(verdict) if verdict.rejected else None
        for rollout, verdict in zip(rollouts, found.verdicts, strict=True)
    ]


Brought = TypeVar("Brought")
Judged = TypeVar("Judged")


class GroupBarrier(Generic[Brought, Judged]):
    """Groups the tasks of an event loop, and calls ``judge`` once per group to compute its results,
    in order. A group is kept until it is complete; results are not kept."""

    def __init__(self, judge: Callable[[Sequence[Brought]], Awaitable[Sequence[Judged]]]) -> None:
        self._judge = judge
        self._open: dict[Hashable, _Group[Brought, Judged]] = {}

    async def submit(self, key: Hashable, work: Callable[[], Awaitable[Brought]]) -> Judged:
        """Do a task's work, wait for its siblings, which share the ``key`` until they are judged,
        and return its result. An exception raised by ``work`` is raised here, and the siblings are
        judged without this task; an exception raised by ``judge`` is raised for the whole group."""
        group = self._open.setdefault(key, _Group())
        place = group.started
        group.started += 1
        group.running += 1
        try:
            await asyncio.sleep(0)
            group.brought[place] = await work()
        finally:
            group.running -= 1
            if not group.running:
                del self._open[key]
                if group.brought:
                    # Run as a separate task, because cancelling one sibling must not cancel the
                    # judging of the others.
                    group.judging = asyncio.create_task(self._judged(group))
                    group.complete.set()
        await group.complete.wait()
        assert group.judging is not None
        return (await asyncio.shield(group.judging))[place]

    async def _judged(self, group: "_Group[Brought, Judged]") -> dict[int, Judged]:
        places = sorted(group.brought)
        verdicts = await self._judge([group.brought[place] for place in places])
        return dict(zip(places, verdicts, strict=True))


@dataclass(slots=True)
class _Group(Generic[Brought, Judged]):
    started: int = 0
    running: int = 0
    brought: dict[int, Brought] = field(default_factory=dict)
    complete: asyncio.Event = field(default_factory=asyncio.Event)
    judging: asyncio.Task[dict[int, Judged]] | None = None
