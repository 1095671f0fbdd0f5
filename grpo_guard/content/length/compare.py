"""Compare a completion's length with other nodes' work, on a log scale.

Each other node gets one vote, its median length, and the middle of these votes is the reference. So
a completion only counts as long if more than half of the other nodes, and at least two, write
shorter ones: a node that sends many short answers cannot make others look long. A node's own work
has no effect on its reference.
"""

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Final, TypeAlias

from grpo_guard.content.answers import is_right
from grpo_guard.core.completion import Completion
from grpo_guard.core.prompts import prompt_key

FEWEST_NODES: Final = 2
"""Minimum number of other nodes to compare a completion with."""
# Factor from median absolute deviation to standard deviation, for a normal distribution.
_MAD = 1.4826
# Median absolute difference between two normal observations, in standard deviations.
_DIFFERENCE = 0.9539
# Number of a node's completions in one group whose pairwise differences contribute to the spread.
_PER_GROUP = 8
# Minimum number of differences or deviations for a node's own spread to be used.
_LEAST_OBSERVED = 5
# Spread of log length among honest completions of one GSM8K question, for batches too small to
# estimate it.
PRIOR_SPREAD = 0.3
# Bounds on the estimated spread: equal lengths in a group must not convict an answer that is one
# sentence longer, and a batch that is half padding must not make padding normal. Late in training,
# a policy writes nearly all answers to one pattern and sometimes adds a check; with a smaller
# LEAST_SPREAD, the pattern's own spread would reject those checks several times as often as
# ``alpha`` allows.
LEAST_SPREAD, MOST_SPREAD = 0.2, 0.45
# Variance of the median of n observations, times n, in units of their variance.
_MEDIAN_VARIANCE = math.pi / 2


RewardOf = Callable[[Completion], float | None]
"""Returns the task's reward for a completion if the caller knows it, otherwise None."""


@dataclass(frozen=True, slots=True)
class Member:
    """A single completion as the statistics see it.

    Args:
        index: Index in the batch.
        length: Length in characters, at least 1. Not in tokens, because the sender provides the
            token ids, and could send only a few of them with a long text.
        node: The sender, if known.
        worth: The reward or, if that is unknown, 1 for a right answer and 0 for a wrong one; None
            if neither is known.
    """

    index: int
    length: int
    node: str | None
    worth: float | None

    @property
    def own(self) -> float:
        """The length by which the member's own node is judged."""
        return self.length


Group: TypeAlias = list[Member]
"""Completions that share a prompt and are compared with one another."""


def groups_of(batch: Sequence[Completion], reward_of: RewardOf | None = None) -> list[Group]:
    """Group the batch by identical prompts, regardless of ``Completion.group``.

    That label is chosen by the sender. A node could put its completions in a group of their own, so
    that they would only be compared with one another, or use the group of a long-winded prompt to
    look short.
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
    """Return the reference answer given by most of a prompt's nodes, or None without a majority.

    References can come with completions. If a node's own reference counted, it could make any
    answer right, and its texts would define the length of right answers. All completions without a
    node count as completions of a single node.
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
    """Return the upper median of sorted values: fewer than half of the values exceed it.

    The upper median of two values is the larger one. With the smaller one, a single node, possibly
    an attacker, would decide.
    """
    return values[len(values) // 2]


def by_node(members: Iterable[Member]) -> dict[str, list[Member]]:
    """Group members by node, leaving out anonymous ones, which could all have the same sender."""
    found = defaultdict[str, list[Member]](list)
    for member in members:
        if member.node is not None:
            found[member.node].append(member)
    return dict(found)


def reward_in_metadata(key: str) -> RewardOf:
    """Return a function that reads the reward from ``Completion.metadata[key]``, for callers who
    put it there themselves."""

    def reward(completion: Completion) -> float | None:
        metadata: Mapping[str, object] = completion.metadata
        value = metadata.get(key)
        return float(value) if isinstance(value, int | float) else None

    return reward


@dataclass(frozen=True, slots=True)
class Excess:
    """How much longer a completion is than the work of other nodes.

    Args:
        log_ratio: Log of the ratio between the completion's length and the middle of the other
            nodes' median lengths.
        spread: Standard deviation of log length among the other nodes' completions.
        nodes: Number of other nodes that the completion was compared with.
        peers: Number of completions sent by the other nodes.
    """

    log_ratio: float
    spread: float
    nodes: int
    peers: int

    @property
    def ratio(self) -> float:
        """Ratio of the completion's length to the middle of the other nodes' median lengths."""
        return math.exp(self.log_ratio)

    @property
    def p_value(self) -> float:
        """Probability that an honest completion by the same model is at least this long.

        Assumes that log lengths follow Student's t with 9 degrees of freedom, and allows for the
        uncertainty of the medians if there are only a few nodes.
        """
        inflation = math.sqrt(1 + _MEDIAN_VARIANCE / self.nodes)
        return tail(self.log_ratio / self.spread / inflation)


def compared(groups: Sequence[Group], wanted: int) -> Iterator[tuple[Group, list[Excess | None]]]:
    """Yield each group of a batch with the excess length of each of its members.

    The excess is None if there are fewer than `FEWEST_NODES` other nodes.

    Args:
        groups: All groups of the batch.
        wanted: Minimum number of completions from other nodes with the same prompt and worth for a
            comparison; if there are fewer, all of the other nodes' work is used.
    """
    by_worth = [_by_worth(group) for group in groups]
    spread = _pooled_spread(part for parts in by_worth for part in parts.values())
    mixed = max(spread, _pooled_spread(groups))
    for group, parts in zip(groups, by_worth, strict=True):
        equals = {worth: _NodeMedians(part) for worth, part in parts.items()}
        all_nodes = _NodeMedians(group)
        yield (
            group,
            [
                _excess(member, equals[member.worth].without(member.node, wanted), spread)
                or _excess(member, all_nodes.without(member.node, 1), mixed)
                for member in group
            ],
        )


def _excess(
    member: Member, reference: tuple[float, int, int] | None, spread: float
) -> Excess | None:
    if reference is None:
        return None
    centre, nodes, peers = reference
    return Excess(math.log(member.length) - centre, spread, nodes, peers)


class _NodeMedians:
    """Each node's median log length over a set of completions of one prompt."""

    def __init__(self, members: Iterable[Member]) -> None:
        logs = {
            node: [math.log(member.length) for member in own]
            for node, own in by_node(members).items()
        }
        self._own = {node: median(of_node) for node, of_node in logs.items()}
        self._sizes = {node: len(of_node) for node, of_node in logs.items()}
        self._total = sum(self._sizes.values())
        self._sorted = sorted(self._own.values())

    def without(self, node: str | None, wanted: int) -> tuple[float, int, int] | None:
        """Return (middle of the other nodes' medians, number of nodes, number of completions).

        Returns None if there are too few nodes or completions.

        Args:
            node: The node to leave out.
            wanted: Minimum number of completions that the other nodes must have.
        """
        own = None if node is None else self._own.get(node)
        nodes = len(self._sorted) - (own is not None)
        others = self._total - (self._sizes[node] if node is not None and own is not None else 0)
        if nodes < FEWEST_NODES or others < wanted:
            return None
        place = nodes // 2
        if own is not None and bisect_left(self._sorted, own) <= place:
            place += 1
        return self._sorted[place], nodes, others


def _by_worth(group: Iterable[Member]) -> dict[float | None, list[Member]]:
    found = defaultdict[float | None, list[Member]](list)
    for member in group:
        found[member.worth].append(member)
    return dict(found)


def _pooled_spread(groups: Iterable[Sequence[Member]]) -> float:
    """Estimate how much log length varies within a prompt, pooled over the whole batch.

    Here, too, each node gets one vote: otherwise an attacker could make everything look alike by
    sending copies, or make padding look normal by sending long and short completions. If nodes send
    several completions per prompt, differences within a node are used: an attacker's differences
    are no larger than anyone else's, however long its work is. If not, each completion is compared
    with the middle of the other nodes, and only completions below it count, because padding never
    makes anything shorter.
    """
    within, below = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    for group in groups:
        nodes, voices = by_node(group), _NodeMedians(group)
        for node, members in nodes.items():
            logs = [math.log(member.length) for member in members[:_PER_GROUP]]
            within[node] += [abs(a - b) / _DIFFERENCE for a, b in combinations(logs, 2)]
            if (found := voices.without(node, 1)) is not None:
                centre, count, _ = found
                inflation = math.sqrt(1 + _MEDIAN_VARIANCE / count)
                below[node] += [_MAD * (centre - x) / inflation for x in logs if x <= centre]
    for observed in (within, below):
        spreads = sorted(median(own) for own in observed.values() if len(own) >= _LEAST_OBSERVED)
        if len(spreads) > FEWEST_NODES:
            return bounded(middle(spreads))
    return PRIOR_SPREAD


def bounded(spread: float) -> float:
    """Clip the spread to the range from `LEAST_SPREAD` to `MOST_SPREAD`."""
    return min(max(spread, LEAST_SPREAD), MOST_SPREAD)


def tail(z: float) -> float:
    """Upper tail probability of Student's t with 9 degrees of freedom, in closed form.

    Honest log lengths are not normal: a model sometimes rambles, and one to two in a hundred
    completions lie beyond the normal distribution's upper 0.001 quantile (bundled policy, GSM8K
    solutions).
    """
    angle = math.atan(z / 3)
    sine, cosine = math.sin(angle), math.cos(angle)
    series = cosine + 2 / 3 * cosine**3 + 8 / 15 * cosine**5 + 16 / 35 * cosine**7
    return max(0.0, 0.5 - (angle + sine * series) / math.pi)
