"""Remember the scores of honest text per node, and compute how much is as foreign as a span.

That share is a conformal p-value: with n honest spans, (1 + number at least as foreign) / (n + 1)
is super-uniform for another span of the same kind. The honest spans are sentences from the other
nodes in which nothing was found; some may be undetected poison. So each node has one vote, the
p-value against its own sentences, and the upper median of the votes decides: a minority of nodes
can neither excuse its poison nor make honest text look foreign.

With fewer than two votes there is no p-value, because the first sender alone would decide. Senders
without a name have no vote for a similar reason: they cannot be told apart, so a few completions
could outweigh many, however their sentences were weighted.
"""

import json
from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

from grpo_guard.core.forks import Lock
from grpo_guard.logprob.reader.foreignness import Foreignness
from grpo_guard.logprob.reference.null import conformal

FEWEST: Final = 20  # spans for a vote; with 20, no conformal p-value is below 1 / 21
MOST: Final = 256  # latest spans of a node that count, because habits drift during training
FEWEST_VOTES: Final = 2  # of other nodes, for a p-value
_ENOUGH: Final = 64
_MOST_NODES: Final = 256
# Spans of up to 23 tokens are compared at their own token count, and all longer spans in a single
# column covering all of their tokens.
_COLUMNS: Final = 24
# How far an odd style can be excused, as a quantile of another node's scores. Without this limit, a
# node that sends only poison would be measured against its own poison.
_MOST_EXCUSED: Final = 0.9


class Vote(NamedTuple):
    """How a span compares with the sentences of another node."""

    p_value: float  # share of sentences that are at least as foreign, in (0, 1]
    beyond: bool  # whether none is, so that the p-value is the smallest possible


@dataclass(slots=True)
class _Node:
    """Scores of one node's spans, with one ascending list per number of tokens compared."""

    latest: deque[tuple[float, ...]] = field(default_factory=deque)
    ascending: list[list[float]] = field(default_factory=lambda: [[] for _ in range(_COLUMNS)])

    def add(self, scores: tuple[float, ...]) -> None:
        if len(self.latest) == MOST:
            for column, score in zip(self.ascending, self.latest.popleft(), strict=True):
                del column[bisect_left(column, score)]
        self.latest.append(scores)
        for column, score in zip(self.ascending, scores, strict=True):
            insort(column, score)

    @property
    def votes(self) -> bool:
        return len(self.latest) >= FEWEST


class HonestSpans:
    """Remembers, for each node, the scores of spans in which nothing was found. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._nodes: OrderedDict[str, _Node] = OrderedDict()

    def add(self, node: str | None, found: Foreignness) -> None:
        """Remember one span of a node; senders without a name (None) are ignored."""
        if node is None:
            return
        with self._lock:
            known = self._nodes.setdefault(node, _Node())
            self._nodes.move_to_end(node)
            known.add(column_scores(found))
            if len(self._nodes) > _MOST_NODES:
                # Drop nodes without a vote first, so that made-up names cannot displace a measure.
                idle = (name for name, known in self._nodes.items() if not known.votes)
                oldest = next(iter(self._nodes))
                del self._nodes[next((name for name in idle if name != node), oldest)]

    def wanted(self, node: str | None) -> int:
        """Return how many more spans a named node's full measure needs."""
        if node is None:
            return 0
        with self._lock:
            known = self._nodes.get(node)
        return max(0, _ENOUGH - (len(known.latest) if known else 0))

    def vote(self, node: str | None, found: Foreignness, *, excused: bool = False) -> Vote | None:
        """Compare a span with other nodes' spans over the same number of tokens. Return the vote
        that decides, or None while fewer than `FEWEST_VOTES` other nodes have one.

        To accumulate evidence, the node's own style is ``excused``, and only nodes with `_ENOUGH`
        spans vote: p-values from one small measure depend on each other. If the lower quartile of
        the node's scores exceeds that of a node it is compared with, the score is reduced by the
        difference, but by no more than the distance between the other node's median and 90 %
        quantile. Beyond the most foreign honest span nothing is extrapolated: a policy that writes
        nonsense once in fifty answers has a far longer tail than its other sentences suggest, and
        would be convicted for it.
        """
        column = column_of(found)
        score = float(found.runs[-1])
        votes = list[Vote]()
        with self._lock:
            own = None if node is None else self._nodes.get(node)
            for other in self._nodes.values():
                if other is own or len(other.latest) < (_ENOUGH if excused else FEWEST):
                    continue
                honest = other.ascending[column]
                own_scores = own.ascending[column] if own is not None and excused else ()
                p_value = conformal(score - _habit(own_scores, honest), honest)
                votes.append(Vote(p_value, beyond=p_value * (len(honest) + 1) < 1.5))
        # With two votes the upper one decides: one hostile node among three could control the
        # lower.
        return sorted(votes)[len(votes) // 2] if len(votes) >= FEWEST_VOTES else None


def column_of(found: Foreignness) -> int:
    """Return the column of `column_scores` used for comparing a span of this length."""
    return min(len(found), _COLUMNS) - 1


def column_scores(found: Foreignness) -> tuple[float, ...]:
    """Return the scores of the most foreign run in the first 1, 2, ... 23 tokens and in all tokens.
    A short span repeats its last score, which further tokens could not have lowered."""
    runs = [float(score) for score in found.runs]
    return (*(runs + [runs[-1]] * _COLUMNS)[: _COLUMNS - 1], runs[-1])


def _habit(own: Sequence[float], honest: Sequence[float]) -> float:
    """Return how much more foreign a node's spans are than another's simply by style, >= 0: poison
    in up to three quarters of its sentences does not affect its lower quartile."""
    if len(own) < FEWEST:
        return 0.0
    most = honest[int(len(honest) * _MOST_EXCUSED)] - honest[len(honest) // 2]
    return min(max(0.0, own[len(own) // 4] - honest[len(honest) // 4]), most)


@cache
def start_profile() -> tuple[tuple[float, ...], ...]:
    """Load the start profile: one ascending tuple per column of `HonestSpans`.

    Until two other nodes have a vote, and always among unnamed senders, there is no measure. A
    guard must then neither accept an odd form nor reject one that any model uses. The profile holds
    the scores of sentences from public answers by many models, read by SmolLM2-135M; nats beyond
    what the context explains depend little on the reader. It only decides flagged spans and is
    never evidence against a node.
    """
    text = files("grpo_guard.logprob.reader").joinpath("start_profile.json").read_text("utf-8")
    return tuple(tuple(column) for column in json.loads(text)["columns"])
