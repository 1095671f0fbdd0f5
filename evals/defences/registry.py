"""Defences by name: the paper's, the recommended stacks, and every registered verifier alone.

In a checkout, the defences in `studies.baselines` are known as well.
"""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from grpo_guard import presets
from grpo_guard.core.completion import Completion
from grpo_guard.core.registry import VERIFIERS, load, load_class
from grpo_guard.core.verdict import Cause, Verdict, accept, reject
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.evals.checkout import known, study
from grpo_guard.evals.defences.base import COUNTED, Build, Defence, Ground, counting, emptied
from grpo_guard.evals.defences.early import defences
from grpo_guard.evals.defences.paper import PaperLogitVerifier
from grpo_guard.evals.roles import COIN
from grpo_guard.evals.swarm.members import Peer, VerifierGuard
from grpo_guard.logprob.replay.verifier import SeedReplayVerifier

NONE: Final = "none"
_OF_WEIGHTS: Final = ("logprob_bound", "tail_probability")


def defence(name: str) -> Defence:
    """Return the defence with that name.

    Raises:
        UnknownNameError: no defence has that name; the message lists the known names.
    """
    if name == NONE:
        return Defence(NONE)
    return _built_in().get(name) or _alone(known(defences(), name))


def _alone(name: str) -> Defence:
    """A single registered verifier as a defence; one that reads weights gets the live ones."""
    kind: Any = load_class(VERIFIERS, name, CompletionVerifier)
    if name in _OF_WEIGHTS:
        return Defence(name, by_verifier(partial(of_weights, name)))
    return Defence(name, by_verifier(lambda peer, ground: kind()))


def _profile(peer: Peer) -> str:
    """The drift profile for a swarm whose nodes compute alike, on the same kind of hardware."""
    return "float32" if str(peer.model.dtype) == "torch.float32" else "bfloat16"


def of_weights(name: str, peer: Peer, ground: Ground) -> CompletionVerifier:
    """Create a registered verifier that reads the live weights."""
    kind: Any = load(VERIFIERS, name)
    keyed = {"key": ground.key.encode()} if name == "logprob_bound" else {}
    verifier: CompletionVerifier = kind(
        peer.model, peer.tokenizer, sampling=ground.config.sampling, profile=_profile(peer), **keyed
    )
    return verifier


def same_weights(peer: Peer, ground: Ground) -> VerifierGuard:
    """Build the preset for nodes that hold the same weights but share no seed."""
    return VerifierGuard(
        presets.same_weights(
            peer.model, peer.tokenizer, ground.config.sampling,
            state=emptied(ground.folder), policy=COUNTED, profile=_profile(peer),
            key=ground.key.encode(),
        )
    )  # fmt: skip


def heterogeneous(
    peer: Peer, ground: Ground, *, reads: bool = False, frozen: bool = False
) -> VerifierGuard:
    """Build the preset for nodes with different weights.

    With ``reads``, the judging node's policy, with its live weights, is the reader. With
    ``frozen``, a copy of the policy with its initial weights is a second reader.
    """
    return VerifierGuard(
        presets.different_weights(
            peer.model if reads else None, peer.tokenizer,
            frozen=copy.deepcopy(peer.model).eval() if frozen else None,
            state=emptied(ground.folder), policy=COUNTED,
        )
    )  # fmt: skip


def by_verifier(
    make: Callable[[Peer, Ground], CompletionVerifier], kind: type[VerifierGuard] = VerifierGuard
) -> Build:
    """Return a function that builds a guard with the verifier created by ``make``."""
    return lambda peer, ground: kind(counting(make(peer, ground), peer.tokenizer))


def replay(peer: Peer, ground: Ground) -> SeedReplayVerifier:
    """Build the seed-replay verifier, which also checks the assignment of prompts and slots."""
    config = ground.config
    return SeedReplayVerifier(
        peer.model, peer.tokenizer, sampling=ground.config.sampling, coin=ground.coin,
        slots=config.per_node, nodes=config.node_names, profile=_profile(peer),
    )  # fmt: skip


class AssignedPrompts(CompletionVerifier):
    """Rejects answers to another node's problem, in swarms where each node has its own problems.

    If only the round's list of problems were checked, every node could choose among all of them,
    and such a choice among forced groups can teach a behaviour (see `studies.adaptive.grinding`).

    Args:
        nodes: Names of the nodes, in the order that the round's prompts are dealt out to them.
        each: Number of prompts per node.
    """

    name = "assigned_prompts"

    def __init__(self, nodes: Sequence[str], each: int) -> None:
        self.nodes, self.each = tuple(nodes), each
        self._owner: dict[str, str] = {}

    def begin_round(self, round: int, prompts: Sequence[str]) -> None:
        """Assign the round's prompts: the first ``each`` to the first node, and so on."""
        self._owner = {
            prompt: self.nodes[at // self.each]
            for at, prompt in enumerate(prompts)
            if at // self.each < len(self.nodes)
        }

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        return [self._verdict(completion) for completion in batch]

    def _verdict(self, completion: Completion) -> Verdict:
        owner = self._owner.get(completion.prompt_text)
        if owner is not None and owner == completion.node:
            return accept(self.name)
        message = f"this prompt is not {(completion.node or '')[:80]!r}'s to answer in this round"
        return reject(self.name, Cause.MALFORMED, message)


def homogeneous(peer: Peer, ground: Ground, *beside: CompletionVerifier) -> VerifierGuard:
    """Build the preset for a shared seed, which also checks the assignment of prompts and slots."""
    config = ground.config
    if config.setting == "vertical":
        beside = (AssignedPrompts(config.node_names, config.own_prompts), *beside)
    assert ground.coin is not None
    return VerifierGuard(
        presets.shared_seed(
            peer.model, peer.tokenizer, ground.config.sampling, ground.coin,
            state=emptied(ground.folder), policy=COUNTED, beside=beside,
            slots=config.per_node, nodes=config.node_names, profile=_profile(peer),
        )
    )  # fmt: skip


_INSTALLED: Final = (
    Defence(COIN, coin=True),
    Defence("kl_0.01", training={"kl_beta": 0.01}),
    Defence("kl_0.1", training={"kl_beta": 0.1}),
    Defence(
        "paper_logit",
        by_verifier(
            lambda peer, ground: PaperLogitVerifier(peer.model, k=ground.config.top_k or 50)
        ),
    ),
    Defence("seed_replay", by_verifier(replay), coin=True),
    Defence("homogeneous", homogeneous, coin=True),
    Defence("heterogeneous", heterogeneous),
    Defence("different_weights_reader", partial(heterogeneous, reads=True)),
    Defence("different_weights_frozen", partial(heterogeneous, reads=True, frozen=True)),
    Defence("same_weights", same_weights),
)


def _built_in() -> dict[str, Defence]:
    """All built-in defences by name, plus those in `studies` if available."""
    more = study("baselines.registry")
    return {one.name: one for one in (*_INSTALLED, *(more.DEFENCES if more else ()))}
