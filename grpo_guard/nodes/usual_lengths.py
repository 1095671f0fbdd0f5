"""How long a node's work usually is relative to its groups, measured on unrewarded answers.

Models differ, and an honest model may write long answers. Rewarded answers cannot tell its style
from padding, because these are exactly what an attacker pads; unrewarded answers can. A model that
thinks at length also writes at length when it is wrong. To look the same, an attacker would have to
send long work for nothing, which takes up a place in a group and teaches the swarm to avoid such
work.

If a node's rewarded answers are, again and again, longer than most other nodes' by more than its
unrewarded ones are, then the node chooses its length for the reward. `NodeMemory` tests that:
chance explains one answer a quarter longer than the others, but not a hundred such answers. The
five honest models that were measured are nowhere near conviction.
"""

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
# Limit on log ratios, about twenty times the group's length: one answer of a model that loops must
# not excuse padding.
_MOST: Final = 3.0
# Number of completions that a node is judged by, because policies change as they are trained.
_REMEMBERED: Final = 256.0
# Rounding error of sums that were added up in a different order.
_SLACK: Final = 1e-9 * _REMEMBERED
# Number of completions after which a usual length is trusted by half.
_HALF: Final = 2
_FEWEST_FOR_SPREAD: Final = 4
# A log ratio that is ignored: honest models differ by a twentieth.
_ALIKE: Final = 0.05
# Standard deviation of an answer's log ratio around what is usual for its node.
_UNSURE: Final = 0.45
# Chance that an honest node is ever found to choose its length for the reward. Such a node loses
# the length beyond its usual one; nothing is rejected.
_ALPHA: Final = 0.01


@dataclass(frozen=True, slots=True)
class Usual:
    """One node's record: count, sum and sum of squares of log ratios. Each is the logarithm of a
    completion's length relative to its group."""

    count: float = 0.0
    total: float = 0.0
    squares: float = 0.0

    @property
    def excess(self) -> float:
        """Log ratio by which the node's work is usually longer than its groups', reduced while
        there is little data."""
        return max(self.total, 0.0) / (self.count + _HALF)

    @property
    def most(self) -> float:
        """Upper estimate of the usual log ratio, in the node's favour, because a few answers can
        mislead."""
        if self.count == 0:
            return 0.0
        return max(self.total, 0.0) / self.count + _UNSURE / math.sqrt(self.count)

    @property
    def spread(self) -> float:
        """Standard deviation of the log ratios; 0 if there are too few."""
        if self.count < _FEWEST_FOR_SPREAD:
            return 0.0
        mean = self.total / self.count
        return math.sqrt(max(self.squares / self.count - mean**2, 0.0))

    def after(self, log_ratio: float) -> "Usual":
        """Return the record after one more completion."""
        kept = min(1.0, (_REMEMBERED - 1) / max(self.count, 1.0))
        clipped = min(max(log_ratio, -_MOST), _MOST)
        return Usual(
            self.count * kept + 1, self.total * kept + clipped, self.squares * kept + clipped**2
        )


@dataclass(frozen=True, slots=True)
class Paid:
    """A rewarded completion: its sender, its reward, its length, and ``own``, the length divided by
    the ratio that is usual for its sender."""

    node: str
    worth: float
    length: int
    own: float

    @classmethod
    def of(cls, node: str, worth: float, length: int, usual: Usual) -> "Paid":
        """Build the record of a completion; ``own`` is its length divided by the ratio that is
        usual for its node."""
        return cls(node, worth, length, length * math.exp(-usual.most - _ALIKE))


class UsualLengths(Memory):
    """Usual lengths by node; safe to share between threads. A ``store`` keeps the records for
    several processes and the next start."""

    def __init__(self, *, store: NodeStore | None = None) -> None:
        self.store = store
        self._nodes: dict[str, Usual] = {}
        super().__init__(store, "usual_lengths")
        self._paid = NodeMemory(alpha=_ALPHA, store=store, name="paid_lengths")

    def known(self) -> Mapping[str, Usual]:
        """Return the current record of each node."""
        with self.fresh():
            return dict(self._nodes)

    def observe(self, seen: Iterable[tuple[str, float]]) -> None:
        """Record completions that earned nothing: for each, its node and the logarithm of the ratio
        of its length to its peers' median. Nothing is kept for nodes beyond the first
        `MAX_NODES`."""
        seen = list(seen)

        def note() -> None:
            for node, log_ratio in seen:
                if node in self._nodes or len(self._nodes) < MAX_NODES:
                    self._nodes[node] = self._nodes.get(node, Usual()).after(log_ratio)

        self.change(note)

    def observe_paid(self, groups: Sequence[Sequence[Paid]]) -> None:
        """Record completions that earned a reward, one group per prompt."""
        self._paid.observe(groups)

    def longer_when_paid(self) -> frozenset[str]:
        """Return the nodes whose rewarded work is longer than most other nodes' by more than usual.

        The chance that an honest node is ever among them is at most 1 %; see `NodeMemory`.
        """
        return frozenset(self._paid.convicted())

    def state_dict(self) -> dict[str, Any]:
        """Return all records as plain JSON values."""
        return {**super().state_dict(), "paid": self._paid.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace all records with those returned by `state_dict`; raises ValueError for any other
        form."""
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
