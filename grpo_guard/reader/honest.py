"""What honest text scores, remembered per node, and how often it is at least as foreign as a span.

The share is a conformal p-value: with n honest spans, (1 + number at least as foreign) / (n + 1)
is super-uniform for one more of their kind. The spans are sentences of the other nodes in which
nothing was found, and some may be poison that nobody has found yet. So each node has one vote, the
p-value that its own sentences give, and the lower median of the votes decides: a minority of the
nodes can neither excuse its poison nor make honest text look foreign.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from grpo_guard.logprob.reference.null import ExponentialTail, conformal
from grpo_guard.reader.foreignness import MOST_TOKENS, Foreignness

FEWEST: Final = 20
"""Spans without which a node has no vote: with 20, no conformal p-value is below 1 / 21."""
MOST: Final = 256
"""Latest spans of a node that count: habits drift in training."""
_ENOUGH: Final = 64
_MOST_NODES: Final = 256
_FEWEST_IN_TAIL: Final = 2
# How far an odd node may be excused, as a quantile of what another node writes. Without a bound, a
# node whose every sentence is poison would be measured by its poison.
_MOST_EXCUSED: Final = 0.9


@dataclass(slots=True)
class _Node:
    """Scores of one node's spans, by number of tokens that are summed; each list ascending."""

    latest: deque[tuple[float, ...]] = field(default_factory=deque)
    ascending: list[list[float]] = field(default_factory=lambda: [[] for _ in range(MOST_TOKENS)])

    def add(self, scores: tuple[float, ...]) -> None:
        if len(self.latest) == MOST:
            for column, score in zip(self.ascending, self.latest.popleft(), strict=False):
                del column[bisect_left(column, score)]
        self.latest.append(scores)
        for column, score in zip(self.ascending, scores, strict=False):
            insort(column, score)

    def comparable(self, length: int) -> int:
        """The most tokens, at most ``length``, that half of this node's spans have; 0 = none.

        Few spans are long, and few spans make coarse p-values.
        """
        enough = max(FEWEST, len(self.latest) / 2)
        while length and len(self.ascending[length - 1]) < enough:
            length -= 1
        return length


class HonestSpans:
    """Scores of spans that nothing was found in. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nodes: OrderedDict[str | None, _Node] = OrderedDict()

    def add(self, node: str | None, found: Foreignness) -> None:
        """Remember one span of a node; None = of senders without a name, all as one node."""
        with self._lock:
            known = self._nodes.setdefault(node, _Node())
            self._nodes.move_to_end(node)
            known.add(_scores(found))
            if len(self._nodes) > _MOST_NODES:
                self._nodes.popitem(last=False)

    def wanted(self, node: str | None) -> int:
        """Spans of this node that are still missing from a measure; 0 where it has enough."""
        with self._lock:
            known = self._nodes.get(node)
        return max(0, _ENOUGH - (len(known.latest) if known else 0))

    def p_value(self, node: str | None, found: Foreignness) -> float | None:
        """Share of the other nodes' spans that are at least as foreign, over equally many tokens.

        Where too few of them are as long as the span, only its beginning is compared.

        Returns:
            In (0, 1]; None while too little honest text is known.
        """
        return self._voted(node, _scores(found), excused=False)

    def tail_p_value(self, node: str | None, found: Foreignness) -> float | None:
        """As `p_value`, continued beyond the most foreign honest span, with the node's own style
        excused.

        The continuation is an exponential tail with an upper limit for its scale. A node whose
        least foreign quarter is more foreign than others' is moved back by the difference, but by
        no more than what separates another node's 90 % quantile from its median.
        """
        return self._voted(node, _scores(found), excused=True)

    def _voted(self, node: str | None, scores: tuple[float, ...], *, excused: bool) -> float | None:
        with self._lock:
            own = self._nodes.get(node)
            # Without names, all senders are one, who is compared with itself: poison that few of
            # them send is a small share of what it is compared with.
            others = [n for name, n in self._nodes.items() if name != node or name is None]
            votes = list[float]()
            for other in others:
                if not (length := other.comparable(min(len(scores), MOST_TOKENS))):
                    continue
                honest, score = other.ascending[length - 1], scores[length - 1]
                if excused:
                    habit = _habit(own.ascending[length - 1] if own else (), honest)
                    votes.append(_with_tail(score - habit, honest))
                else:
                    votes.append(conformal(score, honest))
        return sorted(votes)[(len(votes) - 1) // 2] if votes else None


def _scores(found: Foreignness) -> tuple[float, ...]:
    return tuple(float(score) for score in found.summed[:MOST_TOKENS])


def _habit(own: Sequence[float], honest: Sequence[float]) -> float:
    """By how much a node's spans are more foreign than another's as a matter of style, >= 0.

    By the lower quartiles: poison in up to three quarters of a node's sentences does not move its
    own.
    """
    if len(own) < FEWEST:
        return 0.0
    most = honest[int(len(honest) * _MOST_EXCUSED)] - honest[len(honest) // 2]
    return min(max(0.0, own[len(own) // 4] - honest[len(honest) // 4]), most)


def _with_tail(score: float, honest: Sequence[float]) -> float:
    counted = conformal(score, honest)
    tail = ExponentialTail.fit(honest, _FEWEST_IN_TAIL)
    if tail is None or score <= honest[-1]:
        return counted
    return min(counted, tail.p_value(score))
