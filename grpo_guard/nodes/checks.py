"""Spot-check results per node: the number of clean completions, and whether the node was caught."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from grpo_guard.nodes.memory import Memory
from grpo_guard.nodes.saved import reading, require_format, text, whole
from grpo_guard.nodes.store import NodeStore

FORMAT: Final = 1
MAX_NODES: Final = 16_384
"""Maximum number of nodes remembered. A forgotten node counts as new again and is checked more
often."""


@dataclass(frozen=True, slots=True)
class Checks:
    """Spot-check results of one node: how many of its completions have been accepted since it was
    last caught or first appeared, and whether it was caught and has not yet sent enough clean
    completions since."""

    clean: int = 0
    caught: bool = False


class ChecksOfNodes(Memory):
    """Spot-check results by node; safe to share between threads."""

    def __init__(self, store: NodeStore | None, name: str) -> None:
        self._nodes: dict[str, Checks] = {}
        super().__init__(store, name)

    def of(self, nodes: Sequence[str]) -> dict[str, Checks]:
        """Return the results of the given nodes; zeros for unknown nodes."""
        with self.fresh():
            return {node: self._nodes.get(node, Checks()) for node in nodes}

    def add(self, clean: Mapping[str, int], caught: frozenset[str], enough: int) -> None:
        """Record a batch: the number of accepted completions by node, and the nodes with a
        rejection, whose counts start over. After ``enough`` clean completions a caught node counts
        like any other."""
        self.change(lambda: self._add(clean, caught, enough))

    def _add(self, clean: Mapping[str, int], caught: frozenset[str], enough: int) -> None:
        for node, count in clean.items():
            was = self._nodes.pop(node, Checks())  # moves to the end: most recently seen
            now = Checks(min(was.clean + count, 2**62), was.caught)
            if node in caught:
                now = Checks(0, True)
            elif now.clean >= enough:
                now = Checks(now.clean, False)
            self._nodes[node] = now
        surplus = len(self._nodes) - MAX_NODES
        if surplus > 0:
            # Made-up names must not evict a caught node; nor may throwaway names that were caught
            # fill the memory, or other nodes would always count as new.
            caught_ones = [node for node, checks in self._nodes.items() if checks.caught]
            gone = caught_ones[: max(0, len(caught_ones) - MAX_NODES // 2)][:surplus]
            idle = [node for node, checks in self._nodes.items() if not checks.caught]
            for node in gone + idle[: surplus - len(gone)]:
                del self._nodes[node]

    def _state(self) -> dict[str, Any]:
        nodes = [[node, c.clean, int(c.caught)] for node, c in self._nodes.items()]
        return {"format": FORMAT, "nodes": nodes}

    def _take_up(self, state: dict[str, Any]) -> None:
        with reading("SpotCheck"):
            require_format(state, FORMAT)
            nodes = {text(n): Checks(whole(clean), bool(c)) for n, clean, c in state["nodes"]}
            if len(nodes) > MAX_NODES:
                raise ValueError(f"{len(nodes)} nodes")
        self._nodes = nodes
