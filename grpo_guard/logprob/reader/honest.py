"""Remember scores of honest text per node, and compute how often it is as foreign as a span.

That share is a conformal p-value: with n honest spans, (1 + number at least as foreign) / (n + 1)
is super-uniform for one more of their kind. The spans are sentences of the other nodes in which
nothing was found; some may be poison that was not detected. So each node has one vote, the p-value
against its own sentences, and the upper median of the votes decides: a minority of the nodes can
neither excuse its poison nor make honest text look foreign.

With fewer than two votes there is no p-value: the first sender would decide alone. For the same
reason senders without a name have no vote. Whatever their sentences were weighed by, a few
completions could outweigh many, since nothing tells them apart.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from grpo_guard.logprob.reader.foreignness import Foreignness
from grpo_guard.logprob.reference.null import ExponentialTail, conformal

# Fewest spans for which a node has a vote: with 20, no conformal p-value is below 1 / 21.
FEWEST: Final = 20
# Only this many of a node's latest spans count, since habits drift in training.
MOST: Final = 256
# Fewest other nodes with a vote for which there is a p-value.
FEWEST_VOTES: Final = 2
_ENOUGH: Final = 64
_MOST_NODES: Final = 256
_FEWEST_IN_TAIL: Final = 2
# Spans of up to 23 tokens are compared over that many tokens, longer ones over all of their tokens.
_COLUMNS: Final = 24
# How far an odd style may be excused, as a quantile of another node's scores. Without a bound, a
# node that sends only poison would be measured by its poison.
_MOST_EXCUSED: Final = 0.9


@dataclass(slots=True)
class _Node:
    """Scores of one node's spans, one list per number of tokens that are read, ascending."""

    latest: deque[tuple[float, ...]] = field(default_factory=deque)
    ascending: list[list[float]] = field(default_factory=lambda: [[] for _ in range(_COLUMNS)])
    _tails: dict[int, ExponentialTail | None] = field(default_factory=dict)

    def add(self, scores: tuple[float, ...]) -> None:
        self._tails.clear()
        if len(self.latest) == MOST:
            for column, score in zip(self.ascending, self.latest.popleft(), strict=True):
                del column[bisect_left(column, score)]
        self.latest.append(scores)
        for column, score in zip(self.ascending, scores, strict=True):
            insort(column, score)

    @property
    def votes(self) -> bool:
        return len(self.latest) >= FEWEST

    def tail_p_value(self, score: float, column: int) -> float:
        """The conformal p-value, extrapolated beyond the most foreign span."""
        honest = self.ascending[column]
        counted = conformal(score, honest)
        if score <= honest[-1]:
            return counted
        if column not in self._tails:
            self._tails[column] = ExponentialTail.fit(honest, _FEWEST_IN_TAIL)
        tail = self._tails[column]
        return counted if tail is None else min(counted, tail.p_value(score))


class HonestSpans:
    """Scores of spans in which nothing was found. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nodes: OrderedDict[str, _Node] = OrderedDict()

    def add(self, node: str | None, found: Foreignness) -> None:
        """Remember one span of a node; None = no name, and it is not remembered."""
        if node is None:
            return
        with self._lock:
            known = self._nodes.setdefault(node, _Node())
            self._nodes.move_to_end(node)
            known.add(column_scores(found))
            if len(self._nodes) > _MOST_NODES:
                # Drop names without a vote first, so that invented names evict no measure.
                idle = (name for name, known in self._nodes.items() if not known.votes)
                oldest = next(iter(self._nodes))
                del self._nodes[next((name for name in idle if name != node), oldest)]

    def wanted(self, node: str | None) -> int:
        """How many spans of this node are still missing for a measure; 0 if there are enough, or
        if it has no name."""
        if node is None:
            return 0
        with self._lock:
            known = self._nodes.get(node)
        return max(0, _ENOUGH - (len(known.latest) if known else 0))

    def p_value(self, node: str | None, found: Foreignness) -> float | None:
        """Share of the other nodes' spans that are at least as foreign over as many tokens, in
        (0, 1]; None while fewer than `FEWEST_VOTES` other nodes have a vote."""
        return self._voted(node, found, excused=False)

    def tail_p_value(self, node: str | None, found: Foreignness) -> float | None:
        """`p_value`, extrapolated beyond the most foreign honest span, with the node's own style
        excused.

        The extrapolation is an exponential tail with an upper limit on its scale. If the lower
        quartile of a node's scores is above another's, its score is reduced by the difference, but
        by at most the distance between the other's 90 % quantile and median.
        """
        return self._voted(node, found, excused=True)

    def _voted(self, node: str | None, found: Foreignness, *, excused: bool) -> float | None:
        column = column_of(found)
        score = float(found.runs[-1])
        votes = list[float]()
        with self._lock:
            own = None if node is None else self._nodes.get(node)
            for other in self._nodes.values():
                if not other.votes or other is own:
                    continue
                honest = other.ascending[column]
                if excused:
                    habit = _habit(own.ascending[column] if own else (), honest)
                    votes.append(other.tail_p_value(score - habit, column))
                else:
                    votes.append(conformal(score, honest))
        # The upper of two votes: one hostile node among three could choose the lower.
        return sorted(votes)[len(votes) // 2] if len(votes) >= FEWEST_VOTES else None


def column_of(found: Foreignness) -> int:
    """The column of `column_scores` in which a span of this length is compared."""
    return min(len(found), _COLUMNS) - 1


def column_scores(found: Foreignness) -> tuple[float, ...]:
    """The score of the most foreign run in the first 1, 2, ... tokens, and in all of them.

    A short span fills the remaining columns with its last score, since more tokens could not have
    lowered it.
    """
    runs = [float(score) for score in found.runs]
    return (*(runs + [runs[-1]] * _COLUMNS)[: _COLUMNS - 1], runs[-1])


def _habit(own: Sequence[float], honest: Sequence[float]) -> float:
    """By how much a node's spans are more foreign than another's as a matter of style, >= 0.

    It compares lower quartiles, since poison in up to three quarters of a node's sentences does not
    move the node's own.
    """
    if len(own) < FEWEST:
        return 0.0
    most = honest[int(len(honest) * _MOST_EXCUSED)] - honest[len(honest) // 2]
    return min(max(0.0, own[len(own) // 4] - honest[len(honest) // 4]), most)
