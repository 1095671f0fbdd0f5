"""`EProcessMemory`: one `EProcess` per node, over batches and restarts."""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

from grpo_guard.nodes.e_process import EProcess
from grpo_guard.nodes.memory import Memory
from grpo_guard.nodes.saved import reading, require_format, text
from grpo_guard.nodes.store import NodeStore

FORMAT: Final = 2
MAX_NODES: Final = 4096


class EProcessMemory(Memory):
    """E-processes by node; safe to share between threads. The weights of the columns add up to 1.

    In stores, e-processes still have their former name, "fortunes", because existing files use it.
    """

    def __init__(
        self,
        *,
        store: NodeStore | None = None,
        name: str = "fortunes",
        weights: Sequence[float] = (1.0,),
    ) -> None:
        self.weights = tuple(weights)
        self._nodes: dict[str, EProcess] = {}
        super().__init__(store, name)

    def add(self, batch: Mapping[str, tuple[int, Sequence[float]]]) -> dict[str, EProcess]:
        """Record a batch, given for each node the `digest_of` its completions and the logarithm of
        each column's factor, and return the new e-process of each of its nodes.

        Beyond `MAX_NODES`, the least recently seen nodes are forgotten, starting with nodes that
        have no evidence against them. A forgotten node starts over if it comes back.
        """
        return self.change(lambda: self._add(batch))

    def log_e_values(self) -> dict[str, float]:
        """Return the logarithm of each remembered node's e-value."""
        with self.fresh():
            return {node: process.log_e_value for node, process in self._nodes.items()}

    def release(self, node: str) -> bool:
        """Forget one node; return whether it was known."""
        return self.change(lambda: self._nodes.pop(node, None)) is not None

    def _add(self, batch: Mapping[str, tuple[int, Sequence[float]]]) -> dict[str, EProcess]:
        after = {
            node: self._nodes.get(node, EProcess()).after(log_factors, self.weights, digest=digest)
            for node, (digest, log_factors) in batch.items()
        }
        for node, process in after.items():
            self._nodes.pop(node, None)  # moves to the end: most recently seen
            self._nodes[node] = process
        self._drop_surplus()
        return after

    def _drop_surplus(self) -> None:
        surplus = len(self._nodes) - MAX_NODES
        if surplus > 0:
            # Drop names without evidence first, so that made-up names evict no evidence.
            idle = [node for node, process in self._nodes.items() if process.log_e_value < 0]
            for node in (idle if len(idle) >= surplus else list(self._nodes))[:surplus]:
                del self._nodes[node]

    def _state(self) -> dict[str, Any]:
        nodes = [[node, *process.row()] for node, process in self._nodes.items()]
        return {"format": FORMAT, "nodes": nodes}

    def _take_up(self, state: dict[str, Any]) -> None:
        with reading("EProcessMemory"):
            require_format(state, FORMAT)
            columns = len(self.weights)
            nodes = {text(n): EProcess.of_row(row, columns) for n, *row in state["nodes"]}
            if len(nodes) > MAX_NODES:
                raise ValueError(f"{len(nodes)} nodes")
        self._nodes = nodes


def digest_of(marks: Iterable[bytes]) -> int:
    """Return an order-independent digest of a node's batch, so that a repeated batch counts once.

    The sorted marks are hashed, not added up: an author could choose texts whose marks have a known
    sum, and the batch would then count as already seen.
    """
    digest = blake2b(b"".join(sorted(marks)), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
