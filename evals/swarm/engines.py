"""Which engine a swarm runs on, and how a defence's guards come to stand before its nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from grpo_guard.evals.attacks.adversary import Adversary
from grpo_guard.evals.defences.base import Defence, Ground
from grpo_guard.evals.swarm.engine import Swarm
from grpo_guard.evals.swarm.loop import SwarmLoop
from grpo_guard.evals.swarm.members import NodeGuard, Peer, one_vocabulary

EngineName = Literal["local", "ray"]


def swarm_on(
    engine: EngineName,
    peers: Sequence[Peer],
    chosen: Defence,
    ground: Ground,
    attack: Adversary | None,
) -> SwarmLoop:
    """A swarm before its first round.

    Args:
        engine: "local": in this process. "ray": an actor for each node.
        peers: What the honest nodes start from.
        chosen: What stands before their reward.
        ground: Its ``folder`` is the run's.
        attack: Of the malicious nodes.

    Raises:
        ValueError: the parts do not fit.
        RayMissingError, NodeLostError: as `RaySwarm`.
    """
    # Nodes with other tokenizers see other ids, so that one review is not everybody's.
    own_guards = chosen.per_model or not one_vocabulary(peers)
    guard_in = _guard_in(chosen, ground)
    if engine == "ray":
        from grpo_guard.evals.swarm.ray_engine import RaySwarm

        return RaySwarm(
            peers[0].model, peers[0].tokenizer, ground.task, ground.config, attack=attack,
            others=peers[1:], coin=ground.coin, guard_in=guard_in, per_model=own_guards,
            folder=ground.folder,
        )  # fmt: skip
    shared = None if guard_in is None or own_guards else guard_in(peers[0], ground.folder)
    return Swarm(
        peers[0].model, peers[0].tokenizer, ground.task, ground.config, attack=attack,
        others=peers[1:], coin=ground.coin, guard=shared,
        guard_of=_each(guard_in, peers, ground.folder) if guard_in and own_guards else None,
    )  # fmt: skip


def _guard_in(chosen: Defence, ground: Ground) -> Callable[[Peer, Path], NodeGuard] | None:
    build = chosen.build
    if build is None:
        return None
    return lambda peer, folder: build(peer, replace(ground, folder=folder))


def _each(
    guard_in: Callable[[Peer, Path], NodeGuard], peers: Sequence[Peer], folder: Path
) -> Callable[[Peer], NodeGuard]:
    """Guards of one process, each in a folder of its own where there are several."""
    if len(peers) == 1:
        return lambda peer: guard_in(peer, folder)
    numbers = {id(peer.model): number for number, peer in enumerate(peers)}

    def guard_of(peer: Peer) -> NodeGuard:
        own = folder / "nodes" / f"node-{numbers[id(peer.model)]}"
        own.mkdir(parents=True, exist_ok=True)
        return guard_in(peer, own)

    return guard_of
