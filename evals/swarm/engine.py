"""A swarm in training: generate, exchange, guard, reward and update, wherever its nodes compute.

Every honest node guards, rewards and updates on its own. In one process, nodes that hold the same
weights, and therefore behave identically, form one `Member` and are computed once. On Ray, each
node is an actor that computes for itself, with bit-for-bit identical results if hardware and thread
counts match; the run ends if nodes with the same model disagree. Rounds are the same either way,
and a checkpoint made in one process can be resumed on Ray and vice versa.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from transformers import PreTrainedModel

from grpo_guard.evals.attacks.adversary import Adversary, adversary_of
from grpo_guard.evals.attacks.base import Attack
from grpo_guard.evals.swarm.coalition import Coalition
from grpo_guard.evals.swarm.config import SwarmConfig
from grpo_guard.evals.swarm.honest import Learned, Member
from grpo_guard.evals.swarm.members import GuardIn, Peer, assigned, one_vocabulary
from grpo_guard.evals.swarm.record import Round, Submitted, record
from grpo_guard.evals.swarm.session import Session
from grpo_guard.evals.swarm.terms import Terms
from grpo_guard.evals.tasks.base import Problem, Task
from grpo_guard.logprob.coin import PublicCoin

COALITION: Final = "malicious nodes"


class DivergedError(RuntimeError):
    """Raised if nodes that began with the same weights no longer agree."""


class Swarm:
    """A swarm; :meth:`step` runs a round, and ``model`` is node-0's policy.

    Args:
        peers: The policies that honest nodes start from, trained in place if nodes share objects
            with the caller. A homogeneous swarm has one, a heterogeneous swarm one per honest node,
            in order.
        config: All other settings that affect the result.
        attack: What the malicious nodes do. Without an attack, every node must be honest.
        guard_in: Builds the guard of the nodes that start from a peer, using the model being
            trained and a separate folder; None for no guard.
        coin: Public coin that honest nodes sample under, if any.
        session: Host of the nodes, closed with the swarm; None for this process.
        member: Class of the honest nodes, which defines how they learn.
        terms: Class of what nodes agree on, in addition to the configuration.

    Raises:
        ValueError: attack, models or settings are incompatible.
        NodeLostError: Ray has no room for the nodes.
    """

    def __init__(
        self,
        peers: Sequence[Peer],
        task: Task,
        config: SwarmConfig,
        *,
        attack: Attack | Adversary | None = None,
        guard_in: GuardIn | None = None,
        folder: Path = Path(),
        coin: PublicCoin | None = None,
        session: Session | None = None,
        member: type[Member] = Member,
        terms: type[Terms] = Terms,
    ) -> None:
        self.terms, self.config, self.task = terms(config, task, coin), config, task
        self.attack = adversary_of(attack) if attack is not None else None
        self.tokenizer = peers[0].tokenizer
        self.session, self._member = session or Session(), member
        try:
            self._require_fitting()
            shares = assigned(peers, config.honest_nodes, config)
            self.groups = self._groups(shares)
            """Names of the nodes, in one list per set of identical weights."""
            self._start(shares, guard_in, folder.resolve())
        except BaseException:
            self.session.close()
            raise

    @property
    def model(self) -> PreTrainedModel:
        """The current policy of node-0; a copy if nodes are remote."""
        model: PreTrainedModel = self.session.ask({"node-0": ("policy",)})["node-0"]
        return model

    @property
    def members(self) -> list[Any]:
        """The honest nodes, model by model: `Member` objects, or their actors."""
        return [self.session.actors[name] for name in self._honest]

    def exchange(self, iteration: int) -> tuple[list[Submitted], list[str]]:
        """Return (all nodes' answers, group by group; the prompts asked in the round).

        In the vertical setting these are the prompts of all nodes, in order, if there is a coin,
        and those of the honest nodes otherwise.
        """
        problems = self.terms.problems(iteration)
        kept, calls = self.session.put(list(problems)), dict[str, tuple[Any, ...]]()
        if self.config.malicious:
            # The weights are passed from node to node before node-0 begins to sample.
            live = self.session.call("node-0", "weights") if self.session.remote else None
            calls[COALITION] = ("submit", iteration, kept, live)
        calls |= dict.fromkeys(self._honest, ("submit", iteration, kept))
        sent = self.session.ask(calls)
        items = [item for name in (*self._honest, COALITION) for item in sent.get(name, [])]
        asked = [*problems, *self.terms.assigned(iteration, problems)]
        # Sorting preserves the order within a group, where honest nodes come first.
        by_group = sorted(items, key=lambda item: item.completion.group or 0)
        return by_group, [problem.prompt for problem in asked]

    def step(self, iteration: int) -> Round:
        """Run one round and update the models."""
        started = time.perf_counter()
        submitted, asked = self.exchange(iteration)
        asr = self._asr(submitted, iteration)
        kept = self.session.put(submitted)
        found: dict[str, Learned] = self.session.ask(
            {name: ("learn", iteration, asked, kept, name == "node-0") for name in self._honest}
        )
        for names in self.groups:
            _require_alike(iteration, {name: found[name] for name in names})
        first = [found[names[0]] for names in self.groups]
        seconds = [one.guard_seconds for one in found.values()]
        return record(
            iteration, submitted, first[0].verdicts, asr=asr,
            grad_norm=max(one.grad_norm for one in first), excluded=first[0].excluded,
            rejected_by=tuple(one.rejected for one in first if one.rejected is not None),
            guard_seconds=max(seconds) if self.session.remote else sum(seconds),
            seconds=time.perf_counter() - started,
        )  # fmt: skip

    def state(self) -> dict[str, Any]:
        """Return everything a run needs to continue after a round: tensors and plain values."""
        found = self.session.ask({names[0]: ("state",) for names in self.groups})
        memory = self._coalition("state") if self.attack is not None else {}
        return {"members": list(found.values()), "memory": memory}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned, on a swarm that was created in the same way."""
        calls: dict[str, tuple[Any, ...]] = {}
        for names, member in zip(self.groups, state["members"], strict=True):
            calls |= dict.fromkeys(names, ("restore", self.session.put(member)))
        self.session.ask(calls)
        if self.attack is not None:
            self._coalition("restore", state["memory"])

    def close(self) -> None:
        """Release the nodes' resources; after that, the swarm cannot be used."""
        self.session.close()

    @property
    def _honest(self) -> list[str]:
        return [name for names in self.groups for name in names]

    def _coalition(self, method: str, *args: Any) -> Any:
        return self.session.ask({COALITION: (method, *args)})[COALITION]

    def _require_fitting(self) -> None:
        config = self.config
        if config.malicious and self.attack is None:
            raise ValueError(f"attack: expected one, since {config.malicious} nodes are malicious")
        only = None if self.attack is None else self.attack.only
        if self.attack is not None and only not in (None, config.setting):
            raise ValueError(
                f"{self.attack.name}: expected the {only} setting, got {config.setting}"
            )
        if self.terms.coin is not None and config.models != "homogeneous":
            raise ValueError(
                "coin: expected a homogeneous swarm, whose nodes can replay each other"
            )

    def _groups(self, shares: Sequence[tuple[Peer, list[int]]]) -> list[list[str]]:
        """Name the nodes that compute: all if remote; locally the first one of each model."""
        return [
            [f"node-{node}" for node in (nodes if self.session.remote else nodes[:1])]
            for _, nodes in shares
        ]

    def _start(
        self,
        shares: Sequence[tuple[Peer, list[int]]],
        guard_in: GuardIn | None,
        folder: Path,
    ) -> None:
        session = self.session
        same_ids = one_vocabulary([peer for peer, _ in shares])
        terms = session.put(self.terms)
        kept = [(session.put(peer), nodes) for peer, nodes in shares]
        for (peer, nodes), names in zip(kept, self.groups, strict=True):
            for at, name in enumerate(names):
                own = folder if len(self._honest) == 1 else folder / "nodes" / name
                numbers = (nodes[at],) if session.remote else tuple(nodes)
                session.start(
                    name, self._member, peer, numbers, terms, guard_in, own, same_ids=same_ids
                )
        if self.attack is not None:
            session.start(COALITION, Coalition, self.attack, kept[0][0], terms)
        session.stand()

    def _asr(self, submitted: Sequence[Submitted], iteration: int) -> float:
        if self.attack is None:
            return 0.0
        texts = [item.completion.text for item in submitted if not item.malicious]
        # As many probes as completions, so that both rates have the same denominator.
        each = max(1, len(texts) // self.config.prompts)
        if self.config.success_on is not None:
            each = self.config.success_on[1]
        probes: list[Problem] | None = self._coalition("receive", texts)
        if probes is not None:
            call = ("probe", iteration, self.session.put(probes), each)
            found = self.session.ask(dict.fromkeys(self._honest, call))
            texts = [text for drawn in found.values() for text in drawn]
        return int(self._coalition("successes", texts)) / len(texts)


def _require_alike(iteration: int, found: Mapping[str, Learned]) -> None:
    """Require nodes with the same model to have made the same update, judging by gradients."""
    first, *others = found
    for name in others:
        if found[name].grad_norm.hex() != found[first].grad_norm.hex():
            raise DivergedError(
                f"{name}: expected the update of {first} in round {iteration + 1}, got a gradient "
                f"of norm {found[name].grad_norm!r} and not {found[first].grad_norm!r}; a "
                "homogeneous swarm needs machines of one kind"
            )
