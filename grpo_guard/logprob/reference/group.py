"""Relative to the group: what all nodes' answers to one prompt have in common is not foreign.

The group can excuse and never accuse. A completion's own p-value against the calibration set holds
by itself; what the peers show only makes it larger. So a false-positive rate that holds without a
group holds with one, and a group of one is judged as if there were no groups.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from grpo_guard.completion import Completion

# The calibration set counts for as much as so many other nodes.
PRIOR_NODES = 2.0
# More of them would not change a median by much, and comparing all with all would take for ever.
MOST_NODES = 64
_MAD = 1.4826  # MAD -> standard deviation, for normal values


@dataclass(frozen=True, slots=True)
class Usual:
    """Where the scores of honest completions lie: median, and spread as a standard deviation."""

    location: float
    spread: float


def relative(score: float, peers: Sequence[Sequence[float]], usual: Usual) -> float:
    """The score, moved to where it would stand if the group were a usual one; never raised.

    Robust location and scale over the other nodes, each drawn towards the calibration set's. One
    node has one vote, however many completions it sends, and an even number of votes takes the
    lower middle: half the other nodes together can excuse nothing.

    Args:
        score: Larger is more foreign.
        peers: The scores of each other node's completions of this prompt.
        usual: The calibration set's.
    """
    votes = sorted(_lower_median(scores) for scores in peers if scores)
    if not votes:
        return score
    middle = _lower_median(votes)
    mad = _MAD * _lower_median([abs(vote - middle) for vote in votes])
    count = len(votes)
    location = (PRIOR_NODES * usual.location + count * middle) / (PRIOR_NODES + count)
    variance = (PRIOR_NODES * usual.spread**2 + count * mad**2) / (PRIOR_NODES + count)
    wider = max(1.0, math.sqrt(variance) / usual.spread)
    moved = usual.location + (score - max(location, usual.location)) / wider
    return min(score, moved)


def peers_of(
    batch: Sequence[Completion], scores: Mapping[int, float]
) -> dict[int, list[list[float]]]:
    """Per place in the batch, the scores of each other node's completions of the same prompt.

    A group's label is its sender's word and is not read: with a label of its own, a node would
    choose whom it is compared with. Completions without a node count as from a node each only where
    nobody has one: beside others that do, whoever leaves its name out would have many votes.

    Args:
        batch: All completions.
        scores: Of those that have one, by place.
    """
    nodes = defaultdict[str, dict[Hashable, list[int]]](dict)
    prompts = _prompts(batch)
    named = any(completion.node is not None for completion in batch)
    for i in scores:
        node: Hashable = batch[i].node if named else i
        nodes[prompts[i]].setdefault(node, []).append(i)
    found = dict[int, list[list[float]]]()
    for members in nodes.values():
        compared = list(islice(members.items(), MOST_NODES + 1))
        for node, own in members.items():
            others = [[scores[i] for i in m] for n, m in compared if n != node]
            found.update(dict.fromkeys(own, others[:MOST_NODES]))
    return found


def _prompts(batch: Sequence[Completion]) -> list[str]:
    seen = dict[int, str]()
    for completion in batch:
        if id(completion.prompt) not in seen:
            seen[id(completion.prompt)] = completion.prompt_text
    return [seen[id(completion.prompt)] for completion in batch]


def _lower_median(values: Sequence[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2]
