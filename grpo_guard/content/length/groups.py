"""Comparison groups: completions of one prompt and one worth, from other nodes."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from grpo_guard.content.answers import is_right
from grpo_guard.core.completion import Completion
from grpo_guard.core.prompts import prompt_key

RewardOf = Callable[[Completion], float | None]
"""The task's reward, if the caller knows it; else None."""


@dataclass(frozen=True, slots=True)
class Member:
    """One completion as the statistics see it.

    Args:
        index: Index in the batch.
        length: In characters, at least 1. Not in tokens: the sender provides the ids, and could
            send few of them with a long text.
        node: The sender, if known.
        worth: Its reward, or whether its answer is right; None if neither is known.
    """

    index: int
    length: int
    node: str | None
    worth: float | None

    @property
    def own(self) -> float:
        """The value to judge it by as its node's work."""
        return self.length


Group: TypeAlias = list[Member]
"""Completions that share a prompt and are compared with one another."""


def groups_of(batch: Sequence[Completion], reward_of: RewardOf | None = None) -> list[Group]:
    """Group the batch by equal prompts, whatever ``Completion.group`` says.

    The sender chooses that label. A node could give its completions a group of their own, so that
    they are only compared with one another, or use the group of a long-winded prompt to look short.
    """
    places = defaultdict[str, list[int]](list)
    for i, completion in enumerate(batch):
        places[prompt_key(completion.prompt)].append(i)
    groups = []
    for of_prompt in places.values():
        reference = _agreed([batch[i] for i in of_prompt])
        groups.append([_member(i, batch[i], reference, reward_of) for i in of_prompt])
    return groups


def _member(
    index: int, completion: Completion, reference: str | None, reward_of: RewardOf | None
) -> Member:
    worth = reward_of(completion) if reward_of is not None else None
    if worth is None or not math.isfinite(worth):
        worth = None if reference is None else is_right(completion.text, reference)
    return Member(
        index, max(1, len(completion.text)), completion.node,
        None if worth is None else float(worth),
    )  # fmt: skip


def _agreed(completions: Sequence[Completion]) -> str | None:
    """Return the reference answer that most of a prompt's nodes give; None without a majority.

    A reference may come with its completion. If a node's own reference counted, any answer of its
    choice would be right, and its texts would define the length of right answers. All completions
    without a node count as those of one node.
    """
    votes = Counter[str]()
    by_node = defaultdict[str | None, set[str | None]](set)
    for completion in completions:
        by_node[completion.node].add(completion.reference)
    for references in by_node.values():
        if len(references) == 1 and (reference := next(iter(references))) is not None:
            votes[reference] += 1
    if not votes:
        return None
    reference, count = votes.most_common(1)[0]
    return reference if 2 * count > len(by_node) else None


def middle(values: Sequence[float]) -> float:
    """Return the smallest of sorted values that more than half of them do not exceed.

    Of two values this is the larger one: otherwise a single node, perhaps an attacker, decides.
    """
    return values[len(values) // 2]


def by_node(members: Iterable[Member]) -> dict[str, list[Member]]:
    """The members of each known node. Anonymous senders might all be one, so they are left out of
    the reference."""
    found = defaultdict[str, list[Member]](list)
    for member in members:
        if member.node is not None:
            found[member.node].append(member)
    return dict(found)


def reward_in_metadata(key: str) -> RewardOf:
    """Read the reward from ``Completion.metadata``, for callers who put it there themselves."""

    def reward(completion: Completion) -> float | None:
        metadata: Mapping[str, object] = completion.metadata
        value = metadata.get(key)
        return float(value) if isinstance(value, int | float) else None

    return reward
