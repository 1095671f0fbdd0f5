"""The policies that honest nodes start from, and the interface of their guards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grpo_guard.core.completion import Completion
from grpo_guard.evals.swarm.config import SwarmConfig
from grpo_guard.evals.swarm.generate import Sampled, sample
from grpo_guard.guard import Review

_SAMPLED_AT_ONCE: Final = 512
"""Maximum number of rows per sampling batch; affects only memory."""


class NodeGuard(Protocol):
    """Interface of a guard that is applied before a node computes its rewards."""

    def begin(self, round: int, prompts: Sequence[str]) -> None:
        """Begin a round with its prompts."""

    def review(self, batch: list[Completion]) -> Review:
        """Return verdicts, and length factors if the guard scales rewards."""

    def excluded(self) -> tuple[str, ...]:
        """Return the nodes that the guard no longer accepts anything from."""

    def state(self) -> dict[str, Any]:
        """Return the guard's memory as plain values."""

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A policy that honest nodes start from. The temperature defaults to the configuration's."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    temperature: float | None = None

    def draw(
        self,
        config: SwarmConfig,
        generator: torch.Generator,
        prompts: Sequence[str],
        count: int,
        seeds: Sequence[int] | None = None,
    ) -> list[list[Sampled]]:
        """Draw ``count`` samples for each prompt from the live model, in batches of bounded size.

        With ``seeds``, one per completion as in `sample`, ``generator`` is unused.
        """
        rows: list[list[Sampled]] = []
        step = max(1, _SAMPLED_AT_ONCE // max(1, count))
        for start in range(0, len(prompts), step):
            part = prompts[start : start + step]
            drawn = sample(
                self.model, self.tokenizer, part, count, generator=generator,
                temperature=config.temperature if self.temperature is None else self.temperature,
                top_k=config.top_k, max_new_tokens=config.max_new_tokens,
                seeds=None if seeds is None else seeds[start * count : (start + step) * count],
            )  # fmt: skip
            rows += [drawn[i * count : (i + 1) * count] for i in range(len(part))]
        return rows


GuardIn: TypeAlias = Callable[[Peer, Path], NodeGuard]
"""Builds the guard of the nodes that start from a peer, in a separate folder."""


def one_vocabulary(peers: Sequence[Peer]) -> bool:
    """Whether all peers have the same vocabulary, token ids included."""
    vocabularies = [peer.tokenizer.get_vocab() for peer in peers]
    return all(found == vocabularies[0] for found in vocabularies)


def assigned(
    peers: Sequence[Peer], honest: int, config: SwarmConfig
) -> list[tuple[Peer, list[int]]]:
    """Assign honest nodes to peers: one peer for all, or one for each node."""
    if config.models == "homogeneous":
        if len(peers) != 1:
            raise ValueError(f"peers: expected 1 in a homogeneous swarm, got {len(peers)}")
        return [(peers[0], list(range(honest)))]
    if len(peers) < honest or len({id(peer.model) for peer in peers[:honest]}) < honest:
        raise ValueError(
            f"peers: expected {honest} models, one for each honest node of a heterogeneous swarm, "
            f"got {len({id(peer.model) for peer in peers})}"
        )
    return [(peer, [node]) for node, peer in enumerate(peers[:honest])]
