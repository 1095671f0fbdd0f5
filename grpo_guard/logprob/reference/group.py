"""Scores relative to the group: anything all nodes' answers to a prompt share is not foreign.

The group can excuse but never accuse. A completion's own p-value against the calibration set is
valid by itself, and its peers can only increase it. A false-positive rate that holds without groups
therefore also holds with them, and a group of one is judged as if there were no groups.
"""

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import median_low

from grpo_guard.core.completion import Completion

PRIOR_NODES = 2.0  # the calibration set counts as much as this many other nodes
MOST_NODES = 64  # more would take long to compare, and barely change the median
_MAD = 1.4826  # MAD -> standard deviation, for normal values


@dataclass(frozen=True, slots=True)
class Usual:
    """Median and spread of the scores of honest completions; the spread is a standard deviation."""

    location: float
    spread: float


def relative(score: float, peers: Sequence[Sequence[float]], usual: Usual) -> float:
    """Return the score relative to the rest of its group, never higher than the score itself.

    Uses a robust location and scale over the other nodes' scores for the same prompt, both shrunk
    towards the calibration set's. Each node has one vote, no matter how many completions it sends,
    and with an even number of votes the median is the lower of the middle two: even half of the
    other nodes together cannot excuse anything.
    """
    votes = [median_low(scores) for scores in peers if scores]
    if not votes:
        return score
    middle = median_low(votes)
    mad = _MAD * median_low([abs(vote - middle) for vote in votes])
    count = len(votes)
    location = (PRIOR_NODES * usual.location + count * middle) / (PRIOR_NODES + count)
    variance = (PRIOR_NODES * usual.spread**2 + count * mad**2) / (PRIOR_NODES + count)
    wider = max(1.0, math.sqrt(variance) / usual.spread)
    moved = usual.location + (score - max(location, usual.location)) / wider
    return min(score, moved)


def peers_of(
    batch: Sequence[Completion], scores: Mapping[int, float]
) -> dict[int, list[list[float]]]:
    """Collect, per index, the scores of every other node's completions for the same prompt.

    Group labels come from senders and are ignored, because a node could pick its own peers by
    inventing a label. Completions without a node each count as a separate node only if no
    completion in the batch has a node; otherwise a node could gain many votes by omitting its name.
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
