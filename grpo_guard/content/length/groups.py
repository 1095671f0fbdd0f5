"""Who is compared with whom: completions of one prompt, of one worth, from other nodes."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeAlias

from grpo_guard.completion import Completion
from grpo_guard.content.answers import is_right
from grpo_guard.prompts import prompt_key

# Four of prose; fewer of numbers and of other scripts.
CHARACTERS_PER_TOKEN = 8

RewardOf = Callable[[Completion], float | None]
"""What the task's reward is, where the caller knows it; None where not."""


@dataclass(frozen=True, slots=True)
class Member:
    """One completion as the statistics see it.

    Args:
        index: Its place in the batch.
        length: In the unit of its group, > 0.
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
    return [_members(batch, of_prompt, reward_of) for of_prompt in places.values()]


def lengths_of(
    groups: Sequence[Group], *, by_worth: bool = False, by_node: bool = False
) -> list[list[int]]:
    """Lengths of the members by group, and by worth and known node if asked."""
    found = list[list[int]]()
    for group in groups:
        parts = defaultdict[Hashable, list[int]](list)
        for member in group:
            if not (by_node and member.node is None):
                worth = member.worth if by_worth else None
                parts[worth, member.node if by_node else None].append(member.length)
        found += parts.values()
    return found


def peers_of(member: Member, group: Sequence[Member], wanted: int) -> list[Member]:
    """The members that this one is measured by.

    Those of other nodes and of equal worth, as long as there are ``wanted`` of them: a node must
    not set the measure for itself, and wrong answers ramble where right ones do not. Nor must one
    node set it for all others, as it could by the right answer in a word where few are right.
    """
    others = [m for m in group if m.index != member.index]
    foreign = [m for m in others if member.node is None or m.node != member.node]
    if len(foreign) < wanted:
        foreign = others
    equal = _without_majority([m for m in foreign if m.worth == member.worth])
    return equal if len(equal) >= wanted else foreign


def _without_majority(members: list[Member]) -> list[Member]:
    """The members, but of a node that sent half of them or more only what leaves it fewer.

    Where all are of one node there is nobody to measure it by.
    """
    sizes = Counter(member.node for member in members)
    if len(sizes) < 2:
        return members
    node, most = sizes.most_common(1)[0]
    others = len(members) - most
    if node is None or most < others:
        return members
    left = [member for member in members if member.node == node][: others - 1]
    kept = {member.index for member in left}
    return [m for m in members if m.node != node or m.index in kept]


def _members(
    batch: Sequence[Completion], places: Sequence[int], reward_of: RewardOf | None
) -> list[Member]:
    # One unit per group, or leaving the ids out would make a completion four times as long.
    tokens = all(batch[i].completion_ids is not None for i in places)
    tokens = tokens and _are_of_texts([batch[i] for i in places])
    return [
        Member(i, length_of(batch[i], tokens), batch[i].node, _worth(batch[i], reward_of))
        for i in places
    ]


def _are_of_texts(group: Sequence[Completion]) -> bool:
    """Whether nobody's tokens are far too few for its text.

    Ids are their sender's word, and so is which of them were given: with three of them, or with all
    but three marked, a text of any length would be short.
    """
    each = [len(one.text) / max(1, len(one.completion_ids or ())) for one in group]
    return max(each, default=0) <= max(CHARACTERS_PER_TOKEN, 2 * median(each))


def length_of(completion: Completion, tokens: bool) -> int:
    """Length in tokens or in characters, at least 1."""
    return max(1, len(completion.completion_ids or ()) if tokens else len(completion.text))


def _worth(completion: Completion, reward_of: RewardOf | None) -> float | None:
    reward = reward_of(completion) if reward_of is not None else None
    if reward is not None and math.isfinite(reward):
        return float(reward)
    if completion.reference is None:
        return None
    return float(is_right(completion.text, completion.reference))


def reward_in_metadata(key: str) -> RewardOf:
    """Read the reward from ``Completion.metadata``, for callers who put it there themselves."""

    def reward(completion: Completion) -> float | None:
        metadata: Mapping[str, object] = completion.metadata
        value = metadata.get(key)
        return float(value) if isinstance(value, int | float) else None

    return reward
