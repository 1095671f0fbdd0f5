"""Nodes that sign what they send, each with its own key."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from hashlib import sha256

from grpo_guard.core.completion import Completion
from grpo_guard.evals.swarm.config import SwarmConfig
from grpo_guard.evals.swarm.terms import Terms
from grpo_guard.nodes.identity.envelope import signed
from grpo_guard.nodes.identity.keys import SigningKey


class SignedTerms(Terms):
    """Terms of a swarm where every completion sent is signed."""

    def sent(self, completion: Completion, name: str | None) -> Completion:
        """Sign a completion with its sender's key, even if it is sent under another node's name."""
        key, run = node_key(self.config, completion.node or ""), run_name(self.config)
        if self.coin is None:  # the same problem can be asked twice in a round
            group, slot = int(completion.group or 0), int(completion.slot or 0)
            completion = replace(completion, slot=group * self.config.group_size + slot)
        return signed(replace(completion, node=name), key, run=run)


def run_name(config: SwarmConfig) -> str:
    """Return the run's name, which nodes include in what they sign."""
    return f"swarm-{config.seed}"


def node_key(config: SwarmConfig, node: str) -> SigningKey:
    """Return a node's key, the same in every process."""
    return _key(f"{run_name(config)} {node}")


@lru_cache(maxsize=1024)
def _key(seed: str) -> SigningKey:
    return SigningKey(sha256(seed.encode()).digest())
