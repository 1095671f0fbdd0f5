"""Who is compared with whom: completions of one prompt, of one worth, from other nodes."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from grpo_guard.completion import Completion
from grpo_guard.content.answers import is_right
from grpo_guard.prompts import prompt_key

RewardOf = Callable[[Completion], float | None]
"""What the task's reward is, where the caller knows it; None where not."""


@dataclass(frozen=True, slots=True)
class Member:
    """One completion as the statistics see it.

    Args:
        index: Its place in the batch.
        length: In characters, at least 1. Token ids are their sender's word: whoever sends few ids
            with a long text would be short.
        node: Who sent it, if that is known.
        worth: Its reward, or whether its answer is right; None where neither is known.
    """

    index: int
    length: int
    node: str | None
    worth: float | None

    @property
    def own(self) -> float:
        """What it is judged by as its node's."""
        return self.length


Group: TypeAlias = list[Member]
"""Completions of one prompt, which are compared with one another."""


def groups_of(batch: Sequence[Completion], reward_of: RewardOf | None = None) -> list[Group]:
    """The batch's groups: completions of equal prompts, whatever ``Completion.group`` says.

    A label is its sender's word. A node that gives its completions a group of their own would have
    them compared with one another alone, and under the label of a long-winded prompt it would be
    short.
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
    """The reference answer that most of a prompt's nodes give; None where there is none.

    A reference may come with its completion. By one of its own, a node would be right with any
    answer that it likes, and its words would be the measure of right answers. All completions
    without a node count as those of one.
    """
    votes = Counter[str]()
    by_node = defaultdict[str | None, set[str | None]](set)
    for completion in completions:
        by_node[completion.node].add(completion.reference)
    for said in by_node.values():
        if len(said) == 1 and (reference := next(iter(said))) is not None:
            votes[reference] += 1
    if not votes:
        return None
    reference, count = votes.most_common(1)[0]
    return reference if 2 * count > len(by_node) else None


def middle(values: Sequence[float]) -> float:
    """The least of sorted values that more than half of them do not exceed.

    With two values the larger one: where a single other node decided, it could be anybody.
    """
    return values[len(values) // 2]


def by_node(members: Iterable[Member]) -> dict[str, list[Member]]:
    """The members of each known node. Senders without a name might all be one, so they set no
    measure."""
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
