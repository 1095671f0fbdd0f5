"""Test whether one node's work is longer than the others' over many rounds, valid at any time.

The longest of eighty honest samples is still an honest sample, so no single completion reveals that
it was selected. But a node that always selects it is longer than the others nearly every time, and
that can be tested.

**Null hypothesis** for an ordered pair of nodes (i, j): given the past, the lengths of their
completions of one prompt and one worth are exchangeable, as they are when both sample the same
prompt with policies of equal length. Let ``D`` be the mean of ``sign(length_i - length_j)`` over
the pairs in such a group. Swapping i and j turns D into -D, so ``E[D | past] = 0`` under the null,
whatever the lengths are and however they depend on one another within the group.

**Bound.** For a fixed bet ``0 < b < 1`` the product of ``1 + b * D`` over groups is a non-negative
martingale that starts at 1 (|D| <= 1), and so is its average over several bets and over several
starting groups: an e-process. A start at the t-th group gets ``1 / (t (t + 1))`` of the stake, and
the part not yet staked keeps its value. Otherwise a node that was honest for a hundred rounds could
pad for another hundred. By Ville's inequality the e-process ever reaches c with probability at most
1 / c. Node i is convicted while more than half of the other nodes j have
``E_ij >= (max_nodes - 1) / alpha``. If at most half of the others are malicious, at least one
honest j is among those, and by the union bound over at most ``max_nodes - 1`` of them an honest
node is *ever* convicted, over any number of rounds and looks, with probability at most alpha. The
majority over pairs matters: in one pooled comparison, an attacker who sends very short work would
make every honest node look long.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from grpo_guard.nodes.memory import Memory
from grpo_guard.nodes.saved import number, reading, require_format, text, whole
from grpo_guard.nodes.store import NodeStore

FORMAT = 2
BETS = (0.15, 0.4, 0.8)
# Evidence is capped at e^60, so that a node that once sent long work can clear itself. Lowering a
# bet's wealth keeps the bound valid; raising it to a floor would break it.
_CEILING = 60.0
_NOTHING = -1e9
_WITHOUT_GROUPS = 1
_PER_GROUP = 16


class Measured(Protocol):
    """The parts of a completion that count: its sender, its worth and its length.

    ``own`` is the length used when its own node is judged, at most ``length``. If it is less, the
    node has to be longer by more than the difference. That only lowers ``D``, so the bound holds.
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
    """Bounded running evidence per pair of nodes; safe to share between threads.

    Args:
        alpha: Chance that an honest node is ever convicted; see the module.
        max_nodes: Nodes that are followed, the first ones seen; memory grows with its square.
        store: Keeps the evidence for several processes and the next start; None = in this object.
        name: Name of the evidence in the store.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        *,
        alpha: float = 1e-3,
        max_nodes: int = 32,
        store: NodeStore | None = None,
        name: str = "lengths",
    ) -> None:
        if not 0 < alpha < 1:
            raise ValueError(f"NodeMemory.alpha: expected a number in (0, 1), got {alpha!r}")
        if max_nodes < 3:
            # If two nodes differ, it is unclear which one is honest.
            raise ValueError(f"NodeMemory.max_nodes: expected an integer >= 3, got {max_nodes!r}")
        self.alpha = alpha
        self.max_nodes = max_nodes
        self._wealth: dict[tuple[str, str], _Wealth] = {}
        self._nodes: dict[str, None] = {}
        super().__init__(store, name)

    def observe(self, groups: Sequence[Sequence[Measured]]) -> None:
        """Record a batch, given as groups."""

        def bet() -> None:
            for group in groups:
                for pair, difference in self._differences(group).items():
                    self._bet(pair, difference)

        with self.held(bet):
            bet()

    def convicted(self) -> dict[str, float]:
        """Nodes whose work is longer than most others', with the e-value reached against each of
        that majority."""
        bar = math.log((self.max_nodes - 1) / self.alpha)
        with self.fresh():
            against = defaultdict[str, list[float]](list)
            for (node, _), wealth in self._wealth.items():
                against[node].append(wealth.log_value)
        found = {}
        for node, values in against.items():
            needed = len(values) // 2 + 1
            values.sort(reverse=True)
            if len(values) >= 2 and values[needed - 1] >= bar:
                found[node] = math.exp(min(values[needed - 1], 700.0))
        return found

    def _state(self) -> dict[str, Any]:
        wealth = [[*pair, w.groups, *w.logs] for pair, w in self._wealth.items()]
        return {"format": FORMAT, "nodes": list(self._nodes), "wealth": wealth}

    def _take_up(self, state: dict[str, Any]) -> None:
        with reading("NodeMemory"):
            nodes = dict.fromkeys(map(text, state["nodes"]))
            if state["format"] == _WITHOUT_GROUPS:
                read = {(a, b): _Wealth.of_one_start(logs) for a, b, *logs in state["wealth"]}
            else:
                require_format(state, FORMAT)
                read = {(a, b): _Wealth(groups, logs) for a, b, groups, *logs in state["wealth"]}
            wealth = {(text(a), text(b)): found.checked() for (a, b), found in read.items()}
            known = all(pair[0] in nodes and pair[1] in nodes for pair in wealth)
            if len(nodes) > self.max_nodes or not known:
                raise ValueError(f"{len(nodes)} nodes where max_nodes is {self.max_nodes}")
        with self._lock:
            self._nodes, self._wealth = nodes, wealth

    def _bet(self, pair: tuple[str, str], difference: float) -> None:
        if pair not in self._wealth:
            self._wealth[pair] = _Wealth(0, [_NOTHING] * len(BETS))
        self._wealth[pair].bet(difference)

    def _differences(self, members: Sequence[Measured]) -> dict[tuple[str, str], float]:
        """Mean sign of the difference in length, per ordered pair of nodes of one worth."""
        lengths: dict[float | None, dict[str, list[Measured]]] = {}
        for member in members:
            if member.node is not None and self._follows(member.node):
                mine = lengths.setdefault(member.worth, {}).setdefault(member.node, [])
                if len(mine) < _PER_GROUP:
                    mine.append(member)
        sums = defaultdict[tuple[str, str], list[float]](lambda: [0.0, 0.0])
        for by_node in lengths.values():
            nodes = list(by_node)
            for i in nodes:
                for j in nodes:
                    if i != j:
                        total = sums[i, j]
                        total[0] += sum(
                            (a.own > b.length) - (a.own < b.length)
                            for a in by_node[i]
                            for b in by_node[j]
                        )
                        total[1] += len(by_node[i]) * len(by_node[j])
        return {pair: signs / count for pair, (signs, count) in sums.items()}

    def _follows(self, node: str) -> bool:
        if node not in self._nodes and len(self._nodes) < self.max_nodes:
            self._nodes[node] = None
        return node in self._nodes


@dataclass(slots=True)
class _Wealth:
    """The wealth of the bets on one ordered pair of nodes.

    Args:
        groups: Number of groups bet on so far.
        logs: Logarithm of the staked wealth of each of `BETS`.
    """

    groups: int
    logs: list[float]

    @classmethod
    def of_one_start(cls, logs: Sequence[float]) -> _Wealth:
        """Wealth saved by an earlier release, which staked everything on the first group; that
        start keeps half."""
        return cls(1, [number(log, _NOTHING, _CEILING) - math.log(2) for log in logs])

    def checked(self) -> _Wealth:
        """The same wealth; raises ValueError if this class did not save it."""
        if len(self.logs) != len(BETS):
            raise ValueError("a pair without its bets")
        logs = [number(log, _NOTHING, _CEILING) for log in self.logs]
        return _Wealth(whole(self.groups), logs)

    @property
    def log_value(self) -> float:
        """Logarithm of the e-value: all wealth, staked or not."""
        return _log_sum([_log_sum(self.logs) - math.log(len(BETS)), -math.log(self.groups + 1)])

    def bet(self, difference: float) -> None:
        """Bet on one more group, after adding its stake."""
        self.groups += 1
        stake = -math.log(self.groups) - math.log(self.groups + 1)
        for k, bet in enumerate(BETS):
            log = _log_sum([self.logs[k], stake]) + math.log1p(bet * difference)
            self.logs[k] = min(log, _CEILING)


def _log_sum(logs: Sequence[float]) -> float:
    top = max(logs)
    return top + math.log(sum(math.exp(x - top) for x in logs))
