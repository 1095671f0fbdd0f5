"""OpenRLHF: the samples of a prompt brought together, and what they earn once all were judged.

Each is executed by itself, but an engine starts all samples of a prompt at once, in one
`asyncio.gather`, and the trainer waits for all of them. So nobody has to be told how many there
are: each gives the event loop one turn before it begins, in which its siblings start. And nobody
waits longer for siblings than the trainer does anyway, which is why there is no time-out: it would
tear groups apart and save no time.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

from grpo_guard.adapters.flagged_tokens import Span
from grpo_guard.adapters.openrlhf.rollout import Rollout, number
from grpo_guard.guard import Guard, Review
from grpo_guard.settlement import mean_of_kept
from grpo_guard.verdict import accept


def settle_group(
    guard: Guard, rollouts: Sequence[Rollout], found: Review | None, *, mask_spans: bool
) -> list[tuple[dict[str, Any], bool]]:
    """Each sample's answer without its logs, and whether it is left out.

    Args:
        guard: Whose policy counts.
        rollouts: The samples of one prompt.
        found: None = the guard could not look: all are left out.
        mask_spans: Rejected samples lose flagged tokens and keep their reward.

    Raises:
        AbstainError: something abstained and the policy says to raise.
        TypeError, ValueError: a reward is no number.
    """
    masked = _masked(rollouts, found if mask_spans else None)

    def settled(raw: Sequence[float | None]) -> list[float | None]:
        if found is None:
            return [None] * len(raw)
        # What loses tokens is of its group as it is: "no_gain" compares with it, too.
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
    # One without tokens of its own cannot earn: its reward would stand on the prompt's. And what
    # was put right is nobody's: whatever the policy, it is not trained on.
    out = [
        reward is None or not rollout.turns or rollout.problem is not None
        for reward, rollout in zip(rewards, rollouts, strict=True)
    ]
    reward_of_rest, score_of_rest = (
        mean_of_kept([v for v, left in zip(values, out, strict=True) if v is not None and not left])
        for values in (rewards, scores)
    )
    answers = []
    for i, rollout in enumerate(rollouts):
        left_out, score = out[i], score_of_rest if out[i] else scores[i]
        answer = {
            **rollout.response,
            "reward": reward_of_rest if left_out else rewards[i],
            "scores": score_of_rest if score is None else score,
            "action_ranges": rollout.least() if left_out else masked[i] or rollout.ranges(),
        }
        if left_out and "truncated" in answer:
            # A penalty for being cut off would move what is left out away from the mean.
            answer["truncated"] = False
        answers.append((answer, left_out))
    return answers


def _masked(rollouts: Sequence[Rollout], found: Review | None) -> list[list[Span] | None]:
    """Of what is rejected the ranges without flagged tokens; None = nothing is taken from it."""
    if found is None:
        return [None] * len(rollouts)
    return [
        rollout.without_flagged(verdict) if verdict.rejected else None
        for rollout, verdict in zip(rollouts, found.verdicts, strict=True)
    ]


Brought = TypeVar("Brought")
Judged = TypeVar("Judged")


class GroupBarrier(Generic[Brought, Judged]):
    """For the tasks of one event loop. Keeps a group until all of it has come, and no results.

    Args:
        judge: What each of a group is given back, in order; called once per group.
    """

    def __init__(self, judge: Callable[[Sequence[Brought]], Awaitable[Sequence[Judged]]]) -> None:
        self._judge = judge
        self._open: dict[Hashable, _Group[Brought, Judged]] = {}

    async def submit(self, key: Hashable, work: Callable[[], Awaitable[Brought]]) -> Judged:
        """Do the work, wait for the siblings, and return what was said of it.

        Args:
            key: What siblings have in common. Must stay theirs alone until they are judged.
            work: What the siblings do at the same time.

        Raises:
            Exception: of ``work``, unchanged (the others are judged without it), or of ``judge``,
                to every one of the group.
        """
        group = self._open.get(key)
        if group is None:
            group = self._open[key] = _Group()
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
                # A task of its own: were it one of the siblings, its end would be that of all.
                if group.brought:
                    group.judging = asyncio.create_task(self._judged(group))
                    group.judging.add_done_callback(group.close)
        return (await asyncio.shield(group.verdicts))[place]

    async def _judged(self, group: _Group[Brought, Judged]) -> dict[int, Judged]:
        places = sorted(group.brought)
        verdicts = await self._judge([group.brought[place] for place in places])
        return dict(zip(places, verdicts, strict=True))


class _Group(Generic[Brought, Judged]):
    def __init__(self) -> None:
        self.started = self.running = 0
        self.brought: dict[int, Brought] = {}
        self.verdicts: asyncio.Future[dict[int, Judged]] = (
            asyncio.get_running_loop().create_future()
        )
        self.judging: asyncio.Task[dict[int, Judged]] | None = None

    def close(self, judging: asyncio.Task[dict[int, Judged]]) -> None:
        if judging.cancelled():
            self.verdicts.cancel()
        elif error := judging.exception():
            self.verdicts.set_exception(error)
        else:
            self.verdicts.set_result(judging.result())
