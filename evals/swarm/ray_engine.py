"""A swarm on Ray: each honest node is an actor, and so is the malicious coalition.

Nodes with the same weights compute the same updates, each for itself, bit for bit where hardware
and thread counts are alike; the run ends where they do not agree. Results are those of `Swarm`, and
a checkpoint of one engine can be taken up by the other.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grpo_guard.evals.attacks.adversary import Adversary, adversary_of
from grpo_guard.evals.attacks.base import Attack
from grpo_guard.evals.swarm.config import SwarmConfig
from grpo_guard.evals.swarm.loop import Learned, SwarmLoop
from grpo_guard.evals.swarm.members import Peer, assigned, one_vocabulary
from grpo_guard.evals.swarm.ray_actors import GuardIn, HonestNode, MaliciousNodes, NodeLearned
from grpo_guard.evals.swarm.ray_session import RaySession
from grpo_guard.evals.swarm.record import Submitted
from grpo_guard.evals.swarm.terms import Terms
from grpo_guard.evals.tasks.base import Problem, Task
from grpo_guard.logprob.coin import PublicCoin

COALITION = "malicious nodes"


class DivergedError(RuntimeError):
    """Nodes that began with the same weights no longer hold the same."""


class RaySwarm(SwarmLoop):
    """A swarm in training whose nodes are Ray actors; the interface of `Swarm`.

    Args:
        model, tokenizer, task, config, attack, others, coin: As `Swarm` has them. Models and
            tokenizers are sent to the actors; the caller's stay as they are.
        guard_in: Makes each honest node's guard, inside its actor.
        per_model: The guard looks at weights. One that does not is the same for all nodes, and its
            memory is kept once.
        folder: Each node's guard writes into a folder of its own below it, on its own machine.
        address: Of a running cluster; None = ``RAY_ADDRESS``, or a Ray of our own on this machine.

    Raises:
        ValueError: attack or models do not fit the configuration.
        RayMissingError: Ray is not installed.
        NodeLostError: Ray cannot be reached, or has no room for the actors.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        task: Task,
        config: SwarmConfig,
        *,
        folder: Path,
        attack: Attack | Adversary | None = None,
        guard_in: GuardIn | None = None,
        per_model: bool = True,
        others: Sequence[Peer] = (),
        coin: PublicCoin | None = None,
        address: str | None = None,
    ) -> None:
        terms = Terms(config, task, coin)
        super().__init__(terms, tokenizer, adversary_of(attack) if attack is not None else None)
        shares = assigned((Peer(model, tokenizer), *others), config.honest_nodes, config)
        self._model, self._per_model, self._guarded = model, per_model, guard_in is not None
        self._members = [tuple(f"node-{node}" for node in nodes) for _, nodes in shares]
        for peer, _ in shares:
            if peer.model.device.type != "cpu":
                raise ValueError(f"device: expected cpu with --engine ray, got {peer.model.device}")
        same_ids = one_vocabulary([peer for peer, _ in shares])
        self.session = RaySession(address)
        try:
            self._start(shares, guard_in, folder.resolve(), same_ids)
        except BaseException:
            self.session.close()
            raise

    @property
    def model(self) -> PreTrainedModel:
        """A copy of node-0's policy as it stands."""
        weights = self.session.ask({"node-0": ("weights",)})["node-0"]
        model = copy.deepcopy(self._model)
        model.load_state_dict(weights)
        return model

    def submit(self, iteration: int, problems: Sequence[Problem]) -> list[Submitted]:
        """What all actors answer, honest nodes first."""
        calls: dict[str, tuple[Any, ...]] = {}
        kept = self.session.put(list(problems))
        if self.config.malicious:
            # Handed from actor to actor, before node-0 begins to sample.
            weights = self.session.call("node-0", "weights")
            calls[COALITION] = ("submit", iteration, kept, weights)
        calls |= dict.fromkeys(self._honest, ("submit", iteration, kept))
        sent = self.session.ask(calls)
        return [item for name in (*self._honest, COALITION) for item in sent.get(name, [])]

    def hear(self, texts: Sequence[str]) -> list[Problem] | None:
        """Let the coalition's actor hear honest texts."""
        found: list[Problem] | None = self._coalition("hear", texts)
        return found

    def successes(self, texts: Sequence[str]) -> int:
        """How many of the texts show the behaviour."""
        return int(self._coalition("successes", texts))

    def probe(self, iteration: int, problems: Sequence[Problem], each: int) -> list[str]:
        """Samples of all honest actors."""
        kept = self.session.put(list(problems))
        found = self.session.ask(dict.fromkeys(self._honest, ("probe", iteration, kept, each)))
        return [text for texts in found.values() for text in texts]

    def learn(
        self, iteration: int, asked: Sequence[str], submitted: Sequence[Submitted]
    ) -> Learned:
        """Review and update on every honest actor; equal models must agree."""
        kept = self.session.put(list(submitted))
        found: dict[str, NodeLearned] = self.session.ask(
            {name: ("learn", iteration, asked, kept, name == "node-0") for name in self._honest}
        )
        for names in self._members:
            _same(iteration, {name: found[name] for name in names})
        first = [found[names[0]] for names in self._members]
        return Learned(
            verdicts=first[0].verdicts,
            rejected_by=tuple(one.rejected for one in first if one.rejected is not None),
            excluded=first[0].excluded,
            grad_norm=max(one.grad_norm for one in first),
            guard_seconds=max(one.guard_seconds for one in found.values()),
        )

    def state(self) -> dict[str, Any]:
        """What one actor of each model keeps, and the coalition."""
        found = self.session.ask({names[0]: ("state",) for names in self._members})
        guards = [guard for _, guard in found.values() if guard is not None]
        return {
            "members": [member for member, _ in found.values()],
            "guards": guards if self._per_model else guards[:1],
            "memory": self._coalition("state") if self.attack is not None else {},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Give every actor what `state` gave."""
        guards = list(state["guards"])
        if not guards:
            guards = [None] * len(self._members)
        elif not self._per_model:
            guards = guards * len(self._members)
        calls: dict[str, tuple[Any, ...]] = {}
        for names, member, guard in zip(self._members, state["members"], guards, strict=True):
            kept = self.session.put(member)
            calls |= dict.fromkeys(names, ("restore", kept, guard))
        self.session.ask(calls)
        if self.attack is not None:
            self._coalition("restore", state["memory"])

    def close(self) -> None:
        """Stop the actors."""
        self.session.close()

    @property
    def _honest(self) -> list[str]:
        return [name for names in self._members for name in names]

    def _start(
        self,
        shares: Sequence[tuple[Peer, list[int]]],
        guard_in: GuardIn | None,
        folder: Path,
        same_ids: bool,
    ) -> None:
        session, threads = self.session, torch.get_num_threads()
        terms = session.put(self.terms)
        kept = [(session.put(peer), nodes) for peer, nodes in shares]
        for peer, nodes in kept:
            for node in nodes:
                session.start(
                    f"node-{node}", HonestNode, node, peer, terms, guard_in,
                    folder / "nodes" / f"node-{node}", same_ids=same_ids, threads=threads,
                )  # fmt: skip
        if self.attack is not None:
            session.start(
                COALITION, MaliciousNodes, self.attack, kept[0][0], terms, threads=threads
            )
        session.stand()

    def _coalition(self, method: str, *args: Any) -> Any:
        return self.session.ask({COALITION: (method, *args)})[COALITION]


def _same(iteration: int, found: Mapping[str, NodeLearned]) -> None:
    """Nodes of one model must have had one update; their gradients tell."""
    norms = {name: one.grad_norm.hex() for name, one in found.items()}
    first = next(iter(norms))
    for name, norm in norms.items():
        if norm != norms[first]:
            raise DivergedError(
                f"{name}: expected the update of {first} in round {iteration + 1}, got a gradient "
                f"of norm {found[name].grad_norm!r} and not {found[first].grad_norm!r}; a "
                "homogeneous swarm needs machines of one kind"
            )
