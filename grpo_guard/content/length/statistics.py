"""Robust statistics of length within a group, on the logarithm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

# Median absolute deviation to standard deviation, for a normal distribution.
_MAD = 1.4826
# Median absolute difference of two normal observations, in standard deviations.
_DIFFERENCE = 0.9539
_PER_NODE = 8
_FEW = 4
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
        ratio: Its length over the peers' median.
        deviation: The same on the logarithm, in standard deviations.
        z: That, allowing for how little a few peers' median says.
        p_value: Chance of as much or more for an honest completion, if log lengths follow
            Student's t with 9 degrees of freedom.
        peers: How many it was compared with.
    """

    ratio: float
    deviation: float
    z: float
    p_value: float
    peers: int


def pooled_spread(
    groups: Sequence[Sequence[int]], by_node: Sequence[Sequence[int]] = (), least: int = 15
) -> float:
    """Spread of log length among completions of one prompt, over a whole batch.

    An attacker with a quarter of the batch must not widen what passes. Where nodes send several
    completions of a prompt, differences within a node decide: an attacker's are no larger than
    others', however long its work is. Otherwise each completion is compared with the median of the
    *others* (around a median that holds itself, a third of the members of groups of three would
    deviate by nothing), and only those below it count: padding makes nothing shorter.

    Args:
        groups: Lengths, one list per group of equals; those of fewer than three say nothing.
        by_node: The same, one list per node in each group; empty where nodes are unknown.
        least: Observations below which the next source is taken, and at last the prior.
    """
    within = [
        abs(math.log(a / b)) for lengths in by_node for a, b in combinations(lengths[:_PER_NODE], 2)
    ]
    if len(within) >= least:
        return _bounded(median(within) / _DIFFERENCE)
    deviations = []
    for lengths in groups:
        if len(lengths) >= 3:
            logs = sorted(math.log(length) for length in lengths)
            inflation = math.sqrt(1 + _MEDIAN_VARIANCE / (len(logs) - 1))
            below = ((_median_without(logs, i) - x) / inflation for i, x in enumerate(logs))
            deviations += [x for x in below if x >= 0]
    if len(deviations) < least:
        return PRIOR_SPREAD
    return _bounded(_MAD * median(deviations))


@dataclass(frozen=True, slots=True)
class Spreads:
    """What a group's own spread is drawn towards.

    Args:
        equal: Among completions of one prompt and one worth.
        mixed: Among all of one prompt. Right answers to easy questions are much alike; a wrong one
            measured by that would be long by nature.
    """

    equal: float
    mixed: float

    def for_peers(self, count: int, equal: bool) -> float:
        """The spread for so many peers; few of them never promise less than the usual."""
        spread = self.equal if equal else max(self.equal, self.mixed)
        return spread if count >= _FEW else max(spread, PRIOR_SPREAD)


def _median_without(ordered: Sequence[float], place: int) -> float:
    """Median of a sorted list without one of its members."""
    rest = len(ordered) - 1
    low, high = (rest - 1) // 2, rest // 2
    return (ordered[low + (low >= place)] + ordered[high + (high >= place)]) / 2


def excess(length: int, peers: Sequence[int], prior: float = PRIOR_SPREAD) -> Excess:
    """Compare one length with its peers'.

    Args:
        length: Its own, > 0.
        peers: The others', at least one, each > 0.
        prior: Spread that a small group is drawn towards.
    """
    logs = [math.log(peer) for peer in peers]
    centre = median(logs)
    spread = group_spread(logs, prior)
    difference = math.log(length) - centre
    deviation = difference / spread
    z = deviation / math.sqrt(1 + _MEDIAN_VARIANCE / len(peers))
    return Excess(math.exp(difference), deviation, z, tail(z), len(peers))


def tail(z: float) -> float:
    """Upper tail of Student's t with 9 degrees of freedom, in closed form.

    Honest log lengths are not normal: a model rambles now and then, and beyond the normal's 0.001
    lie one to two in a hundred of them (bundled policy, GSM8K solutions).
    """
    angle = math.atan(z / 3)
    sine, cosine = math.sin(angle), math.cos(angle)
    series = cosine + 2 / 3 * cosine**3 + 8 / 15 * cosine**5 + 16 / 35 * cosine**7
    return max(0.0, 0.5 - (angle + sine * series) / math.pi)


def group_spread(logs: Sequence[float], prior: float) -> float:
    """Standard deviation by the MAD, drawn towards the prior as if by `PRIOR_WEIGHT` members."""
    centre = median(logs)
    own = _MAD * median(abs(x - centre) for x in logs) if len(logs) >= 3 else prior
    weight = len(logs) if len(logs) >= 3 else 0
    variance = (PRIOR_WEIGHT * prior**2 + weight * own**2) / (PRIOR_WEIGHT + weight)
    return _bounded(math.sqrt(variance))


def _bounded(spread: float) -> float:
    return min(max(spread, LEAST_SPREAD), MOST_SPREAD)
