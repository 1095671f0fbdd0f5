"""Scores relative to the group: what all nodes' answers to a prompt have in common is not foreign.

The group can excuse but never accuse. A completion's own p-value against the calibration set is
valid by itself, and its peers can only make it larger. So a false-positive rate that holds without
a group holds with one, and a group of one is judged as if there were no groups.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from grpo_guard.core.completion import Completion

# The calibration set weighs as much as this many other nodes.
PRIOR_NODES = 2.0
# More nodes would barely change a median, and comparing all with all would take too long.
MOST_NODES = 64
_MAD = 1.4826  # MAD -> standard deviation, for normal values


@dataclass(frozen=True, slots=True)
class Usual:
    """Where the scores of honest completions lie: median, and spread as a standard deviation."""

    location: float
    spread: float


def relative(score: float, peers: Sequence[Sequence[float]], usual: Usual) -> float:
    """Shift the score by what the group has in common; never raise it.

    Uses a robust location and scale over the other nodes, each shrunk towards the calibration
    set's. A node has one vote, however many completions it sends, and an even number of votes takes
    the lower middle: half of the other nodes together cannot excuse anything. ``peers`` are the
    scores of each other node's completions of this prompt, ``usual`` is the calibration set's.
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
    """Collect, per index, the scores of each other node's completions of the same prompt.

    Group labels come from senders and are ignored: with a label of its own, a node would choose its
    peers. Completions without a node count as one node each only if no completion has a node;
    otherwise a node could gain many votes by leaving out its name.
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
