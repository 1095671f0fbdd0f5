"""A batch laid out for comparison: its groups, its usual spread, and each member's excess."""

from __future__ import annotations

import random
from collections.abc import Sequence

from grpo_guard.completion import Completion
from grpo_guard.content.length.groups import (
    Group,
    Member,
    RewardOf,
    groups_of,
    lengths_of,
    peers_of,
)
from grpo_guard.content.length.statistics import Excess, Spreads, excess, pooled_spread

# Members that the others of a group are compared with: more say nothing new, and comparing all with
# all would take minutes for a batch that asks one question ten thousand times.
MOST_COMPARED = 64


class Comparison:
    """The groups of one batch and what is usual in it.

    Args:
        batch: Of any groups and nodes.
        reward_of: Reward of a completion; None = whether its answer is the reference.
        wanted: How many equals from other nodes make a comparison; else all others do.
    """

    def __init__(
        self, batch: Sequence[Completion], reward_of: RewardOf | None, wanted: int
    ) -> None:
        self.groups = groups_of(batch, reward_of)
        self.wanted = wanted
        self._samples = {id(group): _sample(group) for group in self.groups}
        self._spreads = Spreads(self._spread(by_worth=True), self._spread(by_worth=False))

    def _spread(self, *, by_worth: bool) -> float:
        return pooled_spread(
            lengths_of(self.groups, by_worth=by_worth),
            lengths_of(self.groups, by_worth=by_worth, by_node=True),
        )

    def of(self, member: Member, group: Group) -> tuple[list[Member], Excess | None]:
        """A member's peers and its excess over them; None where it has none."""
        peers = peers_of(member, self._samples[id(group)], self.wanted)
        if not peers:
            return peers, None
        equal = all(peer.worth == member.worth for peer in peers)
        spread = self._spreads.for_peers(len(peers), equal)
        return peers, excess(member.length, [peer.length for peer in peers], spread)


def _sample(members: list[Member]) -> list[Member]:
    """At most `MOST_COMPARED` of them, the same ones each time.

    Drawn, not evenly spaced: where nodes take turns, every eighth would be of one node.
    """
    if len(members) <= MOST_COMPARED:
        return members
    return random.Random(0).sample(members, MOST_COMPARED)
