"""Test whether one node's work is longer than other nodes' over many rounds, valid at any time.

The longest of eighty honest samples is still an honest sample, so no single completion reveals that
it was selected. But a node that always selects the longest sample sends longer work than the others
nearly every time, and that can be tested.

**Null hypothesis** for an ordered pair of nodes (i, j): given the past, the lengths of their
completions of one prompt with equal worth are exchangeable, as they are when both nodes sample the
same prompt from policies of equal length. Let ``D`` be the mean of ``sign(length_i - length_j)``
over the pairs in such a group. Swapping i and j turns D into -D, so ``E[D | past] = 0`` under the
null, whatever the lengths are and however they depend on one another within the group.

**Bound.** For a fixed bet ``0 < b < 1``, the mean of ``1 + b * D`` given the past is 1, and
``1 + b * D`` is never negative (|D| <= 1): a factor of an `EProcess`, with one column for each bet.
The part of the stake that is in reserve counts too. By Ville's inequality the e-process ever
reaches c with probability at most 1 / c. Node i is convicted while more than half of the other
nodes j have ``E_ij >= (max_nodes - 1) / alpha``. If at most half of the other nodes are malicious,
at least one of these nodes j is honest, and by the union bound over at most ``max_nodes - 1`` of
them an honest node is *ever* convicted, over any number of rounds and looks, with probability at
most alpha. The majority over pairs matters: in one pooled comparison, an attacker who sends very
short work would make every honest node look long.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import permutations
from typing import Any, Final, Protocol

from grpo_guard.core.arguments import require_count, require_level
from grpo_guard.nodes.e_process import FLOOR, EProcess, log_add, log_threshold
from grpo_guard.nodes.memory import Memory
from grpo_guard.nodes.saved import number, reading, require_format, text
from grpo_guard.nodes.store import NodeStore

FORMAT: Final = 3
BETS: Final = (0.15, 0.4, 0.8)
_WEIGHTS: Final = (1 / len(BETS),) * len(BETS)
_MOST: Final = 60.0
# Maximum log wealth of one bet, from which a node that once sent long work can still clear itself.
# All bets together reach at most e^60.
_CAP: Final = _MOST - math.log(len(BETS))
_UNWEIGHTED: Final = 2  # the format of release 0.3, where the bets' wealth had no weights yet
_NOTHING: Final = -1e9  # the smallest log wealth in that format
_PER_GROUP: Final = 16


class Measured(Protocol):
    """The parts of a completion that the test uses: its sender, its worth and its length.

    ``own`` is the length used when the completion's own node is judged, at most ``length``. If
    ``own`` is less, the node has to be longer than the others by more than the difference. That
    only lowers ``D``, so the bound holds.
    """

    @property
    def node(self) -> str | None: ...
    @property
    def worth(self) -> float | None: ...
    @property
    def length(self) -> int: ...
    @property
    def own(self) -> float: ...


class NodeMemory(Memory):
    """Bounded running evidence per pair of nodes; safe to share between threads. Raises ValueError
    if an argument is out of range.

    Args:
        alpha: Chance that an honest node is ever convicted; see the module docstring.
        max_nodes: Maximum number of nodes to follow: the first ones seen. Memory grows with the
            square of this number.
        store: Where to keep the evidence for other processes and later starts; None to keep it in
            this object only.
        name: Name of the evidence in the store.
    """

    def __init__(
        self,
        *,
        alpha: float = 1e-3,
        max_nodes: int = 32,
        store: NodeStore | None = None,
        name: str = "lengths",
    ) -> None:
        require_level("NodeMemory.alpha", alpha)
        # If two nodes differ, it is unclear which one is honest.
        require_count("NodeMemory.max_nodes", max_nodes, least=3)
        self.alpha = alpha
        self.max_nodes = max_nodes
        self._pairs: dict[tuple[str, str], EProcess] = {}
        self._nodes: dict[str, None] = {}
        super().__init__(store, name)

    def observe(self, groups: Sequence[Sequence[Measured]]) -> None:
        """Record a batch of completions, given as groups."""

        def stake() -> None:
            for group in groups:
                for pair, difference in self._differences(group).items():
                    factors = [math.log1p(bet * difference) for bet in BETS]
                    before = self._pairs.get(pair, EProcess())
                    self._pairs[pair] = before.after(factors, _WEIGHTS, cap=_CAP)

        self.change(stake)

    def convicted(self) -> dict[str, float]:
        """Return the nodes whose work is longer than that of most other nodes, each with the
        e-value that it reaches against every node in that majority."""
        threshold = log_threshold(self.alpha, self.max_nodes - 1)
        with self.fresh():
            against = defaultdict[str, list[float]](list)
            for (node, _), process in self._pairs.items():
                against[node].append(log_add(process.log_e_value, process.log_reserve))
        found = {}
        for node, values in against.items():
            needed = len(values) // 2 + 1
            values.sort(reverse=True)
            if len(values) >= 2 and values[needed - 1] >= threshold:
                found[node] = math.exp(min(values[needed - 1], 700.0))
        return found

    def _state(self) -> dict[str, Any]:
        wealth = [[*pair, *process.row()] for pair, process in self._pairs.items()]
        return {"format": FORMAT, "nodes": list(self._nodes), "wealth": wealth}

    def _take_up(self, state: dict[str, Any]) -> None:
        with reading("NodeMemory"):
            nodes = dict.fromkeys(map(text, state["nodes"]))
            rows = {(text(a), text(b)): row for a, b, *row in state["wealth"]}
            if state["format"] == _UNWEIGHTED:
                rows = {pair: _weighted(*row) for pair, row in rows.items()}
            else:
                require_format(state, FORMAT)
            pairs = {pair: EProcess.of_row(row, len(BETS), _CAP) for pair, row in rows.items()}
            known = all(a in nodes and b in nodes for a, b in pairs)
            if len(nodes) > self.max_nodes or not known:
                raise ValueError(f"{len(nodes)} nodes, but max_nodes is {self.max_nodes}")
        with self._lock:
            self._nodes, self._pairs = nodes, pairs

    def _differences(self, members: Sequence[Measured]) -> dict[tuple[str, str], float]:
        """Mean sign of the difference in length between completions of equal worth, per ordered
        pair of nodes."""
        lengths: dict[float | None, dict[str, list[Measured]]] = {}
        for member in members:
            if member.node is not None and self._follows(member.node):
                own = lengths.setdefault(member.worth, {}).setdefault(member.node, [])
                if len(own) < _PER_GROUP:
                    own.append(member)
        sums = defaultdict[tuple[str, str], list[float]](lambda: [0.0, 0.0])
        for by_node in lengths.values():
            for (i, mine), (j, theirs) in permutations(by_node.items(), 2):
                total = sums[i, j]
                total[0] += sum(
                    (a.own > b.length) - (a.own < b.length) for a in mine for b in theirs
                )
                total[1] += len(mine) * len(theirs)
        return {pair: signs / count for pair, (signs, count) in sums.items()}

    def _follows(self, node: str) -> bool:
        if node not in self._nodes and len(self._nodes) < self.max_nodes:
            self._nodes[node] = None
        return node in self._nodes


def _weighted(starts: Any, *logs: Any) -> list[Any]:
    """Convert a row saved by release 0.3 to the current form of `EProcess.row`."""
    wealth = [number(log, _NOTHING, _MOST) - math.log(len(BETS)) for log in logs]
    return [[max(log, FLOOR) for log in wealth], starts]
