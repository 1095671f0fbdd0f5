"""How long a node's own work is against its groups', read off what earned it nothing.

Where models differ, one of them may write at length and be honest. Answers that are paid for do not
tell its way from padding: who pads to be paid pads exactly these. Answers that earned nothing do. A
model that thinks at length is long when it is wrong, too; an attacker would have to send long work
for nothing, which takes a place in a group and, beside right answers, teaches the swarm to avoid
such work.

So the two are held against each other. A node whose answers that earned are longer than most other
nodes' by more than its answers that earned nothing are, again and again, chooses its length for the
reward. That is tested as in `NodeMemory`: a quarter longer each round, by which a whole swarm is
led to write ever more, is within what chance does to one answer and not to a hundred. Of five
honest models none comes near: where they are long, they are long when they are wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from grpo_guard.nodes.lengths import NodeMemory
from grpo_guard.nodes.memory import Memory
from grpo_guard.nodes.saved import number, reading, require_format, text
from grpo_guard.nodes.store import NodeStore

FORMAT: Final = 1
MAX_NODES: Final = 4096
# One answer of a model that loops must not excuse padding: no more than twenty times the group's.
_MOST: Final = 3.0
# Completions that a node is judged by: policies change as they are trained.
_REMEMBERED: Final = 256.0
# Of sums in another order.
_SLACK: Final = 1e-9 * _REMEMBERED
# Completions that half of a usual length is believed after.
_HALF: Final = 2
_FEWEST_FOR_SPREAD: Final = 4
# So much longer, on the logarithm, is nothing: models differ by a twentieth.
_ALIKE: Final = 0.05
# Standard deviation of an answer around its node's usual, on the logarithm.
_UNSURE: Final = 0.45
# Chance that an honest node is ever taken for one that chooses its length for the reward. It loses
# what is longer than usual, and nobody rejects it.
_ALPHA: Final = 0.01


@dataclass(frozen=True, slots=True)
class Usual:
    """What is known of one node: count, sum and sum of squares of log ratios to its groups."""

    count: float = 0.0
    total: float = 0.0
    squares: float = 0.0

    @property
    def excess(self) -> float:
        """How much longer than its groups it usually is, on the logarithm, as far as believed."""
        return max(self.total, 0.0) / (self.count + _HALF)

    @property
    def most(self) -> float:
        """The same in the node's favour: what a few answers may have missed is its benefit."""
        if self.count == 0:
            return 0.0
        return max(self.total, 0.0) / self.count + _UNSURE / math.sqrt(self.count)

    @property
    def spread(self) -> float:
        """Standard deviation around that; 0 where too little is known."""
        if self.count < _FEWEST_FOR_SPREAD:
            return 0.0
        mean = self.total / self.count
        return math.sqrt(max(self.squares / self.count - mean**2, 0.0))

    def after(self, log_ratio: float) -> Usual:
        """With one completion more."""
        kept = min(1.0, (_REMEMBERED - 1) / max(self.count, 1.0))
        clipped = min(max(log_ratio, -_MOST), _MOST)
        return Usual(
            self.count * kept + 1, self.total * kept + clipped, self.squares * kept + clipped**2
        )


@dataclass(frozen=True, slots=True)
class Paid:
    """A completion that earned: who sent it, for what reward, how long it is, and as its node's."""

    node: str
    worth: float
    length: int
    own: float

    @classmethod
    def of(cls, node: str, worth: float, length: int, usual: Usual) -> Paid:
        """With what is usual for its node taken off."""
        return cls(node, worth, length, length * math.exp(-usual.most - _ALIKE))


class UsualLengths(Memory):
    """What is usual for each node; safe to share between threads.

    Args:
        store: Where it lies, for several processes and the next start; None: here.
    """

    def __init__(self, *, store: NodeStore | None = None) -> None:
        self.store = store
        self._nodes: dict[str, Usual] = {}
        super().__init__(store, "usual_lengths")
        self._paid = NodeMemory(alpha=_ALPHA, store=store, name="paid_lengths")

    def known(self) -> Mapping[str, Usual]:
        """What is usual by now, by node."""
        with self.fresh():
            return dict(self._nodes)

    def observe(self, seen: Iterable[tuple[str, float]]) -> None:
        """Take note of completions that earned nothing.

        Args:
            seen: Node, and the logarithm of its length over its peers' median. Of nodes beyond the
                first `MAX_NODES` nothing is kept.
        """
        seen = list(seen)

        def note() -> None:
            for node, log_ratio in seen:
                if node in self._nodes or len(self._nodes) < MAX_NODES:
                    self._nodes[node] = self._nodes.get(node, Usual()).after(log_ratio)

        with self.held(note):
            note()

    def observe_paid(self, groups: Sequence[Sequence[Paid]]) -> None:
        """Take note of completions that earned, one group per prompt."""
        self._paid.observe(groups)

    def longer_when_paid(self) -> frozenset[str]:
        """Nodes whose paid work is longer than most others' beyond what is usual for them.

        An honest node is ever among them with a chance of at most 1 %, as `NodeMemory` shows.
        """
        return frozenset(self._paid.convicted())

    def state_dict(self) -> dict[str, Any]:
        """What is known as plain JSON values."""
        return {**super().state_dict(), "paid": self._paid.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` gave, in place of what is known.

        Raises:
            ValueError: it is not of that form.
        """
        with reading("UsualLengths"):
            paid = state["paid"]
        super().load_state_dict(state)
        self._paid.load_state_dict(paid)

    def _state(self) -> dict[str, Any]:
        nodes = [[node, u.count, u.total, u.squares] for node, u in self._nodes.items()]
        return {"format": FORMAT, "nodes": nodes}

    def _take_up(self, state: dict[str, Any]) -> None:
        with reading("UsualLengths"):
            require_format(state, FORMAT)
            nodes = {
                text(node): Usual(
                    number(count, 0, _REMEMBERED + _SLACK),
                    number(total, -_MOST * count - _SLACK, _MOST * count + _SLACK),
                    number(squares, -_SLACK, _MOST**2 * count + _SLACK),
                )
                for node, count, total, squares in state["nodes"]
            }
            if len(nodes) > MAX_NODES:
                raise ValueError(f"{len(nodes)} nodes")
        self._nodes = nodes
