"""A completion's length against its peers': robust statistics on the logarithm."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from grpo_guard.completion import Completion
from grpo_guard.content.length.groups import (
    Group,
    Member,
    RewardOf,
    groups_of,
    lengths_of,
    peers_of,
)

# Members that the others of a group are compared with: more say nothing new, and comparing all with
# all would take minutes for a batch that asks one question ten thousand times.
MOST_COMPARED = 64
# Median absolute deviation to standard deviation, for a normal distribution.
_MAD = 1.4826
# Median absolute difference of two normal observations, in standard deviations.
_DIFFERENCE = 0.9539
_PER_NODE = 8
_FEW = 4
_LEAST_OBSERVED = 15
# Spread of log length among honest completions of one GSM8K question, where a batch is too small
# to say it itself; and how many observations this stands for.
PRIOR_SPREAD = 0.3
PRIOR_WEIGHT = 4.0
# Bounds for what the data may make of it: a group of equal lengths must not convict a sentence
# more, and a batch half of padding must not declare padding normal. A policy late in its training
# writes nearly all answers by one pattern and now and then a check behind it: with a lower bound
# the pattern's own spread would reject those checks several times as often as ``alpha`` says.
LEAST_SPREAD, MOST_SPREAD = 0.2, 0.45
# A median of n observations varies by this over n, in units of the variance.
_MEDIAN_VARIANCE = math.pi / 2


@dataclass(frozen=True, slots=True)
class Excess:
    """How much longer a completion is than its peers.

    Args:
        log_ratio: Logarithm of its length over the peers' median.
        spread: Standard deviation of log length among them.
        peers: How many it was compared with.
        foreign: None of them is of the same node.
    """

    log_ratio: float
    spread: float
    peers: int
    foreign: bool = True

    @property
    def ratio(self) -> float:
        """Its length over the peers' median."""
        return math.exp(self.log_ratio)

    @property
    def p_value(self) -> float:
        """Chance of as much or more for an honest completion of the same model.

        If log lengths follow Student's t with 9 degrees of freedom, and allowing for how little a
        few peers' median says.
        """
        inflation = math.sqrt(1 + _MEDIAN_VARIANCE / self.peers)
        return tail(self.log_ratio / self.spread / inflation)


class Comparison:
    """The groups of one batch and what is usual in it.

    A group's own spread is drawn towards that of all groups: among equals (of one prompt and one
    worth), or among all of a prompt. Right answers to easy questions are much alike; a wrong one
    measured by that would be long by nature.

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
        self._equal, self._mixed = (self._pooled(by_worth=equal) for equal in (True, False))

    def _pooled(self, *, by_worth: bool) -> float:
        return _pooled_spread(
            lengths_of(self.groups, by_worth=by_worth),
            lengths_of(self.groups, by_worth=by_worth, by_node=True),
        )

    def of(self, member: Member, group: Group) -> Excess | None:
        """A member's excess over its peers; None where it has none."""
        peers = peers_of(member, self._samples[id(group)], self.wanted)
        if not peers:
            return None
        equal = all(peer.worth == member.worth for peer in peers)
        usual = self._equal if equal else max(self._equal, self._mixed)
        if len(peers) < _FEW:  # which never promise less than the usual
            usual = max(usual, PRIOR_SPREAD)
        logs = [math.log(peer.length) for peer in peers]
        centre = median(logs)
        foreign = member.node is None or all(peer.node != member.node for peer in peers)
        above = math.log(member.length) - centre
        return Excess(above, _spread(logs, centre, usual), len(peers), foreign)


def _sample(members: list[Member]) -> list[Member]:
    """At most `MOST_COMPARED` of them, the same ones each time.

    Drawn, not evenly spaced: where nodes take turns, every eighth would be of one node.
    """
    if len(members) <= MOST_COMPARED:
        return members
    return random.Random(0).sample(members, MOST_COMPARED)


def _pooled_spread(groups: Sequence[Sequence[int]], by_node: Sequence[Sequence[int]]) -> float:
    """Spread of log length among completions of one prompt, over a whole batch.

    An attacker with a quarter of the batch must not widen what passes. Where nodes send several
    completions of a prompt, differences within a node decide: an attacker's are no larger than
    others', however long its work is. Otherwise each completion is compared with the median of the
    *others* (around a median that holds itself, a third of the members of groups of three would
    deviate by nothing), and only those below it count: padding makes nothing shorter.

    Args:
        groups: Lengths, one list per group of equals; those of fewer than three say nothing.
        by_node: The same, one list per node in each group; empty where nodes are unknown.
    """
    within = [
        abs(math.log(a / b)) for lengths in by_node for a, b in combinations(lengths[:_PER_NODE], 2)
    ]
    if len(within) >= _LEAST_OBSERVED:
        return bounded(median(within) / _DIFFERENCE)
    deviations = []
    for lengths in groups:
        if len(lengths) >= 3:
            logs = sorted(math.log(length) for length in lengths)
            inflation = math.sqrt(1 + _MEDIAN_VARIANCE / (len(logs) - 1))
            below = ((_median_without(logs, i) - x) / inflation for i, x in enumerate(logs))
            deviations += [x for x in below if x >= 0]
    if len(deviations) < _LEAST_OBSERVED:
        return PRIOR_SPREAD
    return bounded(_MAD * median(deviations))


def _median_without(ordered: Sequence[float], place: int) -> float:
    """Median of a sorted list without one of its members."""
    rest = len(ordered) - 1
    low, high = (rest - 1) // 2, rest // 2
    return (ordered[low + (low >= place)] + ordered[high + (high >= place)]) / 2


def _spread(logs: Sequence[float], centre: float, prior: float) -> float:
    """Standard deviation by the MAD, drawn towards the prior as if by `PRIOR_WEIGHT` members."""
    weight = len(logs) if len(logs) >= 3 else 0
    own = _MAD * median(abs(x - centre) for x in logs)
    variance = (PRIOR_WEIGHT * prior**2 + weight * own**2) / (PRIOR_WEIGHT + weight)
    return bounded(math.sqrt(variance))


def bounded(spread: float) -> float:
    """The spread between `LEAST_SPREAD` and `MOST_SPREAD`."""
    return min(max(spread, LEAST_SPREAD), MOST_SPREAD)


def tail(z: float) -> float:
    """Upper tail of Student's t with 9 degrees of freedom, in closed form.

    Honest log lengths are not normal: a model rambles now and then, and beyond the normal's 0.001
    lie one to two in a hundred of them (bundled policy, GSM8K solutions).
    """
    angle = math.atan(z / 3)
    sine, cosine = math.sin(angle), math.cos(angle)
    series = cosine + 2 / 3 * cosine**3 + 8 / 15 * cosine**5 + 16 / 35 * cosine**7
    return max(0.0, 0.5 - (angle + sine * series) / math.pi)
