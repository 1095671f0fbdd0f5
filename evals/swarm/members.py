"""The policies that honest nodes start from, and their guards."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grpo_guard.core.completion import Completion
from grpo_guard.core.ensemble import inner_verifiers
from grpo_guard.core.verifier import Composed
from grpo_guard.evals.swarm.config import SwarmConfig
from grpo_guard.evals.swarm.generate import Sampled, sample
from grpo_guard.guard import Guard, Review
from grpo_guard.nodes.ledger import EvidenceLedger
from grpo_guard.nodes.standing import State

_SAMPLED_AT_ONCE: Final = 512
"""Maximum number of rows per sampling batch; affects only memory."""


class VerifierGuard:
    """Applies one of the library's guards before the reward, and keeps the guard's memory."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.ledger = guard.ledger if isinstance(guard.ledger, EvidenceLedger) else None
        self._parts = [v for v in inner_verifiers(guard.verifier) if not isinstance(v, Composed)]
        self._nodes: tuple[str, ...] = ()

    def begin(self, round: int, prompts: Sequence[str]) -> None:
        """Begin a round in the verifiers that depend on it."""
        for part in self._parts:
            if hasattr(part, "begin_round"):
                part.begin_round(round, prompts)

    def review(self, batch: list[Completion]) -> Review:
        """Review the completions of a round, and keep the names of their nodes for `excluded`."""
        self._nodes = tuple(sorted({completion.node or "" for completion in batch}))
        return self.guard.review(batch)

    def excluded(self) -> tuple[str, ...]:
        """Return the nodes of the last round that the ledger excludes; none without a ledger."""
        if self.ledger is None:
            return ()
        return tuple(n for n in self._nodes if self.ledger.state(self._key(n)) is State.HARD)

    def _key(self, node: str) -> str:
        """Return the node's key in the ledger."""
        identity = self.guard.identity
        return node if identity is None else identity.ring.key_of(node) or node

    def state(self) -> dict[str, Any]:
        """Return the guard's memory."""
        return self.guard.state_dict()

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the guard's memory."""
        self.guard.load_state_dict(state)


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


GuardIn: TypeAlias = Callable[[Peer, Path], VerifierGuard]
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
