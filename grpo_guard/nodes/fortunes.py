"""Fortunes: what evidence against a node comes to over batches.

A bet against each node's honesty. Its batch has an e-value, a number of mean at most 1 if the node
is honest, whatever came before; the fortune is multiplied by it. A new bet begins with each batch,
with a share of the stake, so that long honest work in front of poison costs little:

    fortune after batch b = e_b * (fortune before + 1 / ((b + 1)(b + 2))),   b = 0, 1, ...

The shares add up to 1, so by Ville's inequality an honest node's fortune ever reaches 1 / alpha
with a chance of at most alpha, however many batches it sends.

Several bets run side by side, the *columns*, each with its own e-value of a batch and a weight that
is fixed beforehand. The fortune is the sum of theirs: an average of fair bets is a fair bet. Each
column multiplies by itself, so that a bet which wins a little in each batch keeps what it has won.
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
# Beyond this nothing is added, so that a node that stops comes back after some honest batches.
_MOST: Final = math.log(1e12)
_LEAST: Final = -1e6
# A batch that comes again, as from a trainer that looks at it twice, is one batch.
_REMEMBERED: Final = 4


@dataclass(frozen=True, slots=True)
class Fortune:
    """What is known of one node.

    Args:
        logs: Logarithm of each column's fortune, its weight included; empty before the first batch.
        batches: That came.
        seen: Digests of the last of them.
    """

    logs: tuple[float, ...] = ()
    batches: int = 0
    seen: tuple[int, ...] = ()

    @property
    def log(self) -> float:
        """Logarithm of the whole fortune."""
        return float(np.logaddexp.reduce(self.logs)) if self.logs else -math.inf

    def after(self, digest: int, log_es: Sequence[float], weights: Sequence[float]) -> Fortune:
        """With one batch more.

        Args:
            digest: Of the batch.
            log_es: Logarithm of each column's e-value.
            weights: Of the columns; they add up to 1.
        """
        if digest in self.seen:
            return self
        shares = np.log(weights) - math.log((self.batches + 1.0) * (self.batches + 2.0))
        logs = np.asarray(log_es) + np.logaddexp(self.logs or -math.inf, shares)
        seen = (*self.seen, digest)[-_REMEMBERED:]
        return Fortune(tuple(np.clip(logs, _LEAST, _MOST).tolist()), self.batches + 1, seen)


class NodeEvidenceProcess(Memory):
    """The fortunes of bets against nodes; safe to share between threads.

    Args:
        store: Where they lie, for several processes and the next start; None: here.
        name: Of this memory in the store.
        weights: Of the columns; they add up to 1.
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
        """Take note of a batch; the fortune of each of its nodes after it.

        Args:
            batch: By node: a digest of what it sent, in [0, 2^63), and the logarithm of each
                column's e-value. Beyond `MAX_NODES` the node that was not seen for longest is
                forgotten, first of those that nothing speaks against; it begins anew when it
                comes back.
        """
        with self.held(lambda: self._add(batch)):
            return self._add(batch)

    def known(self) -> dict[str, float]:
        """The logarithm of the fortune of each node that is remembered."""
        with self.fresh():
            return {node: fortune.log for node, fortune in self._nodes.items()}

    def release(self, node: str) -> bool:
        """Forget one node; whether it was known."""
        with self.held(lambda: self._nodes.pop(node, None)):
            return self._nodes.pop(node, None) is not None

    def _add(self, batch: Mapping[str, tuple[int, Sequence[float]]]) -> dict[str, Fortune]:
        after = {
            node: self._nodes.get(node, Fortune()).after(digest, log_es, self.weights)
            for node, (digest, log_es) in batch.items()
        }
        for node, fortune in after.items():
            self._nodes.pop(node, None)  # and to the end: the last seen
            self._nodes[node] = fortune
        self._drop_surplus()
        return after

    def _drop_surplus(self) -> None:
        surplus = len(self._nodes) - MAX_NODES
        if surplus > 0:
            # Names that speak for nobody yet, so that invented ones drive no evidence out.
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
        """Of a state with one column; the others have won nothing yet."""
        first = max(number(value, _LEAST, _MOST) + math.log(self.weights[0]), _LEAST)
        return (first, *(_LEAST for _ in self.weights[1:]))


def _digests(values: list[Any]) -> tuple[int, ...]:
    if len(values) > _REMEMBERED:
        raise ValueError(f"{len(values)} digests")
    return tuple(whole(value) for value in values)
