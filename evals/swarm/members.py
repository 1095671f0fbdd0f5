"""Which policies honest nodes start from, and what may stand before their reward."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grpo_guard.completion import Completion
from grpo_guard.evals.swarm.config import SwarmConfig
from grpo_guard.guard import Review
from grpo_guard.verdict import Verdict

GuardFn = Callable[[list[Completion]], list[Verdict]]
"""One verdict per completion, same order. It sees the live model: build it from the same object."""


@runtime_checkable
class NodeGuard(Protocol):
    """What stands before a node's reward."""

    def begin(self, round: int, prompts: Sequence[str]) -> None:
        """A round begins, with the prompts that are asked in it."""

    def review(self, batch: list[Completion]) -> Review:
        """Verdicts, and factors of length where the guard scales rewards."""

    def excluded(self) -> tuple[str, ...]:
        """Nodes that the guard takes nothing from any more."""

    def state(self) -> dict[str, Any]:
        """What it remembers, as plain values."""

    def restore(self, state: dict[str, Any]) -> None:
        """Take up what `state` gave."""


class PlainGuard:
    """A function that gives verdicts, as a guard without memory."""

    def __init__(self, function: GuardFn) -> None:
        self.function = function

    def begin(self, round: int, prompts: Sequence[str]) -> None:
        """Nothing to do."""

    def review(self, batch: list[Completion]) -> Review:
        """The function's verdicts, without metrics."""
        return Review(self.function(batch), {})

    def excluded(self) -> tuple[str, ...]:
        """Nobody: a function remembers no node."""
        return ()

    def state(self) -> dict[str, Any]:
        """Nothing: a function keeps no state."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Nothing to do."""


def node_guard(guard: GuardFn | NodeGuard | None) -> NodeGuard | None:
    """A guard as it is, a function as `PlainGuard`."""
    if guard is None or isinstance(guard, NodeGuard):
        return guard
    return PlainGuard(guard)


@dataclass(frozen=True, slots=True)
class Peer:
    """A policy that honest nodes start from; ``temperature`` None = the configuration's."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    temperature: float | None = None


def one_vocabulary(peers: Sequence[Peer]) -> bool:
    """Whether the ids of each are ids of all."""
    vocabularies = [peer.tokenizer.get_vocab() for peer in peers]
    return all(found == vocabularies[0] for found in vocabularies)


def assigned(
    peers: Sequence[Peer], honest: int, config: SwarmConfig
) -> list[tuple[Peer, list[int]]]:
    """Which honest nodes start from which peer: one for all, or each node one of its own.

    Nodes that learn different things each get a copy, however alike they begin.

    Raises:
        ValueError: a heterogeneous swarm has fewer models than honest nodes, or one of them twice.
    """
    if config.models == "homogeneous":
        if len(peers) != 1:
            raise ValueError(f"peers: expected 1 in a homogeneous swarm, got {len(peers)}")
        if not config.apart:
            return [(peers[0], list(range(honest)))]
        further = range(1, honest)
        copies = [replace(peers[0], model=copy.deepcopy(peers[0].model)) for _ in further]
        return [(peer, [node]) for node, peer in enumerate([peers[0], *copies])]
    if len(peers) < honest or len({id(peer.model) for peer in peers[:honest]}) < honest:
        raise ValueError(
            f"peers: expected {honest} models, one for each honest node of a heterogeneous swarm, "
            f"got {len({id(peer.model) for peer in peers})}"
        )
    return [(peer, [node]) for node, peer in enumerate(peers[:honest])]
