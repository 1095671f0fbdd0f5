"""TRL: what the veto makes of the rewards of several functions, [rows, functions]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from grpo_guard.guard import Guard, Review
from grpo_guard.losses import with_losses


def settled_rewards(
    guard: Guard, rewards: Tensor, review: Review, weights: Sequence[float]
) -> Tensor:
    """Column by column; a number of ``on_reject`` counts once in each row; "no_gain" is "drop" yet.

    What the trainer weighs below 0 is settled with its sign turned: a cost of -5 is a gain of 5 by
    then, and a veto that took it for a penalty would let it stand. The number goes to the first
    function that says something of the row and is not weighed 0, for there only it is heard.
    """
    policy = guard.policy
    if policy.on_reject == "no_gain":  # a column alone does not tell who gains: see `losing`
        policy = replace(policy, on_reject="drop")
    rest = policy if isinstance(policy.on_reject, str) else replace(policy, on_reject="zero")
    said = [False] * len(rewards)
    columns = []
    for column, weight in zip(rewards.T.tolist(), weights, strict=True):
        sign = -1.0 if weight < 0 else 1.0
        values = [None if value != value else sign * value for value in column]
        first = guard.settle(values, review, policy=policy)
        later = guard.settle(values, review, policy=rest)
        kept = [b if before else a for a, b, before in zip(first, later, said, strict=True)]
        columns.append([float("nan") if value is None else sign * value for value in kept])
        said = [
            before or (weight != 0 and value is not None)
            for before, value in zip(said, values, strict=True)
        ]
    return torch.tensor(columns, dtype=rewards.dtype, device=rewards.device).T


def lowered(rewards: Tensor, zeroed: Tensor, weights: Tensor, group: int) -> Tensor:
    """What "zero" left is at most its group's lowest, over ranks: each settles its own rows alone.

    Args:
        rewards: Of all ranks, [rows, functions]; the rows of a group follow one another.
        zeroed: Which rows have the reward of "zero", [rows, 1].
        weights: Of the functions; below 0 the highest cost is the lowest reward.
        group: Rows of a group.
    """
    sign = torch.where(weights < 0, -1.0, 1.0)
    signed = rewards * sign
    finite = torch.where(signed.isfinite(), signed, torch.inf).view(-1, group, len(weights))
    lowest = finite.amin(dim=1).repeat_interleave(group, dim=0)
    return torch.where(zeroed & (signed > lowest), lowest, signed) * sign


def losing(kept: Tensor, rewards: Tensor, rejected: Tensor, weights: Tensor, group: int) -> Tensor:
    """Rows that "no_gain" leaves in their group, since they lose there, [rows].

    Args:
        kept, rewards: After and before the veto, of all ranks, [rows, functions]; a row that is NaN
            throughout is not in its group.
        rejected: Which rows, [rows, 1].
        weights: Of the functions.
        group: Rows of a group, which follow one another.
    """

    def totals(of: Tensor) -> list[float | None]:
        nothing = of.isnan().all(dim=1).tolist()
        summed = (of * weights).nansum(dim=1).tolist()
        return [None if none else total for none, total in zip(nothing, summed, strict=True)]

    before = totals(kept)
    after = with_losses(
        before,
        totals(rewards),
        rejected[:, 0].tolist(),
        [row // group for row in range(len(kept))],
    )
    back = [a is not None and b is None for a, b in zip(after, before, strict=True)]
    return torch.tensor(back, device=kept.device)
