"""Fortunes: evidence against a node, accumulated over batches.

Each fortune is a bet against one node's honesty. A batch of the node has an e-value: if the node is
honest, its mean given the past is at most 1. The fortune is multiplied by it. A new bet with a
share of the stake starts at each batch, so that long honest work before poison delays detection
little:

    fortune after batch b = e_b * (fortune before + 1 / ((b + 1)(b + 2))),   b = 0, 1, ...

The shares add up to 1, so by Ville's inequality an honest node's fortune ever reaches 1 / alpha
with a chance of at most alpha, however many batches it sends.

Several bets, the *columns*, run side by side, each with its own e-value per batch and a weight
fixed in advance. A node's fortune is the sum over its columns: an average of fair bets is a fair
bet. Each column multiplies separately, so that a bet that wins a little in each batch keeps its
winnings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from grpo_guard.nodes.memory import Memory
from grpo_guard.nodes.saved import number, reading, require_format, text, whole
from grpo_guard.nodes.store import NodeStore

FORMAT: Final = 2
_ONE_COLUMN: Final = 1  # the format of 0.2
MAX_NODES: Final = 4096
# Fortunes are capped here, so that a node that stops is cleared after some honest batches.
_MOST: Final = math.log(1e12)
_LEAST: Final = -1e6
# Digests kept so that a repeated batch, e.g. of a trainer that judges it twice, counts once.
_REMEMBERED: Final = 4


@dataclass(frozen=True, slots=True)
class Fortune:
    """The fortune of one node.

    Args:
        logs: Logarithm of each column's fortune, its weight included; empty before the first batch.
        batches: Batches so far.
        seen: Digests of the latest batches.
    """

    logs: tuple[float, ...] = ()
    batches: int = 0
    seen: tuple[int, ...] = ()

    @property
    def log(self) -> float:
        """Logarithm of the whole fortune."""
        return float(np.logaddexp.reduce(self.logs)) if self.logs else -math.inf

    def after(self, digest: int, log_es: Sequence[float], weights: Sequence[float]) -> Fortune:
        """The fortune after one more batch.

        Args:
            digest: Identifies the batch; one that was seen lately changes nothing.
            log_es: Logarithm of each column's e-value.
            weights: Weights of the columns; they add up to 1.
        """
        if digest in self.seen:
            return self
        shares = np.log(weights) - math.log((self.batches + 1.0) * (self.batches + 2.0))
        logs = np.asarray(log_es) + np.logaddexp(self.logs or -math.inf, shares)
        seen = (*self.seen, digest)[-_REMEMBERED:]
        return Fortune(tuple(np.clip(logs, _LEAST, _MOST).tolist()), self.batches + 1, seen)


class NodeEvidenceProcess(Memory):
    """Fortunes by node; safe to share between threads.

    Args:
        store: Keeps them for several processes and the next start; None = in this object only.
        name: Name of this memory in the store.
        weights: Weights of the columns; they add up to 1.
    """

    def __init__(
        self,
        *,
        store: NodeStore | None = None,
        name: str = "fortunes",
        weights: Sequence[float] = (1.0,),
    ) -> None:
        self.weights = tuple(weights)
        self._nodes: dict[str, Fortune] = {}
        super().__init__(store, name)

    def add(self, batch: Mapping[str, tuple[int, Sequence[float]]]) -> dict[str, Fortune]:
        """Record a batch and return the new fortune of each of its nodes.

        Beyond `MAX_NODES` the least recently seen node is forgotten, those without evidence against
        them first; it starts over if it comes back.

        Args:
            batch: By node: a digest of its completions, in [0, 2^63), and the logarithm of each
                column's e-value.
        """
        with self.held(lambda: self._add(batch)):
            return self._add(batch)

    def known(self) -> dict[str, float]:
        """The logarithm of each remembered node's fortune."""
        with self.fresh():
            return {node: fortune.log for node, fortune in self._nodes.items()}

    def release(self, node: str) -> bool:
        """Forget one node; return whether it was known."""
        with self.held(lambda: self._nodes.pop(node, None)):
            return self._nodes.pop(node, None) is not None

    def _add(self, batch: Mapping[str, tuple[int, Sequence[float]]]) -> dict[str, Fortune]:
        after = {
            node: self._nodes.get(node, Fortune()).after(digest, log_es, self.weights)
            for node, (digest, log_es) in batch.items()
        }
        for node, fortune in after.items():
            self._nodes.pop(node, None)  # moves to the end: most recently seen
            self._nodes[node] = fortune
        self._drop_surplus()
        return after

    def _drop_surplus(self) -> None:
        surplus = len(self._nodes) - MAX_NODES
        if surplus > 0:
            # Drop names without evidence first, so that made-up names evict no evidence.
            idle = [node for node, fortune in self._nodes.items() if fortune.log < 0]
            for node in (idle if len(idle) >= surplus else list(self._nodes))[:surplus]:
                del self._nodes[node]

    def _state(self) -> dict[str, Any]:
        nodes = [[node, list(f.logs), f.batches, *f.seen] for node, f in self._nodes.items()]
        return {"format": FORMAT, "nodes": nodes}

    def _take_up(self, state: dict[str, Any]) -> None:
        with reading("NodeEvidenceProcess"):
            before = isinstance(state, dict) and state.get("format") == _ONE_COLUMN
            require_format(state, _ONE_COLUMN if before else FORMAT)
            nodes = {
                text(node): Fortune(
                    self._first_of(logs) if before else self._logs(logs),
                    whole(batches),
                    _digests(seen),
                )
                for node, logs, batches, *seen in state["nodes"]
            }
            if len(nodes) > MAX_NODES:
                raise ValueError(f"{len(nodes)} nodes")
        self._nodes = nodes

    def _logs(self, values: list[Any]) -> tuple[float, ...]:
        if len(values) != len(self.weights):
            raise ValueError(f"{len(values)} columns")
        return tuple(number(value, _LEAST, _MOST) for value in values)

    def _first_of(self, value: Any) -> tuple[float, ...]:
        """Columns for a state that has only one; the others have won nothing yet."""
        first = max(number(value, _LEAST, _MOST) + math.log(self.weights[0]), _LEAST)
        return (first, *(_LEAST for _ in self.weights[1:]))


def _digests(values: list[Any]) -> tuple[int, ...]:
    if len(values) > _REMEMBERED:
        raise ValueError(f"{len(values)} digests")
    return tuple(whole(value) for value in values)
