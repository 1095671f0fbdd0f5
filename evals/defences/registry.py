"""Names of defences: baselines, the recommended stacks, and every registered verifier alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from grpo_guard import presets
from grpo_guard.content.arithmetic.verifier import ArithmeticVerifier
from grpo_guard.content.code.verifier import CodeVerifier
from grpo_guard.content.screens.verifier import ScreensVerifier
from grpo_guard.ensemble import AllOf
from grpo_guard.evals.defences.authors import AUTHORS
from grpo_guard.evals.defences.base import (
    COUNTED,
    Defence,
    Ground,
    VerifierGuard,
    counting,
    emptied,
)
from grpo_guard.evals.defences.judges import backend_of_environment, paper_judge, shipped
from grpo_guard.evals.defences.paper import MaxLengthVerifier, PaperLogitVerifier
from grpo_guard.evals.defences.plain import DistanceToSolution, ExactDuplicates
from grpo_guard.evals.defences.references import OfTask
from grpo_guard.evals.defences.slots import AssignedPrompts, WholeRounds
from grpo_guard.evals.defences.spans import TokenSpanGuard
from grpo_guard.evals.roles import COIN
from grpo_guard.evals.swarm.members import NodeGuard, Peer
from grpo_guard.evals.swarm.terms import Terms, node_key, run_name
from grpo_guard.identity.gate import Identity
from grpo_guard.identity.ring import KeyRing
from grpo_guard.logprob.replay.verifier import SeedReplayVerifier
from grpo_guard.nodes.recurrence.verifier import RecurrenceVerifier
from grpo_guard.registry import VERIFIERS, choose, load, names
from grpo_guard.spot_checks import SpotCheck
from grpo_guard.verifier import CompletionVerifier

NONE: Final = "none"
_OF_WEIGHTS: Final = ("logprob_bound", "tail_probability")
# These need what a swarm run does not have: a judge, or a reference model of one's own.
_ELSEWHERE: Final = ("judge", "reference_likelihood", "remote")
_GOLD_SOLUTIONS: Final = 1000
# An honest token of a policy that samples from its top 50 is seldom less likely than this.
_IMPROBABLE: Final = 0.02
# Nats per completion. F-TIS has 50, and 5 or 10 for small models in early rounds.
_FILTER_KL: Final = 10.0
# Half, the best in SAPO (arXiv 2509.08721): 4 local and 4 external rollouts.
_LOCAL_SHARE: Final = 0.5


def defence_names() -> list[str]:
    """Everything that `defence` knows, "none" first."""
    alone = [name for name in names(VERIFIERS) if name not in _ELSEWHERE]
    return [NONE, *sorted({*_BUILT_IN, *alone})]


def defence(name: str) -> Defence:
    """The defence of that name.

    Raises:
        UnknownNameError: with the names that exist and the nearest one.
        ValueError: the environment names no judge for ``paper_judge`` or ``authors_judge_...``.
    """
    if name == NONE:
        return Defence(NONE)
    if name.startswith(("paper_judge", "authors_judge")):
        backend_of_environment()  # said before the first run of a plan and not at its own turn
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    return _alone(choose(defence_names(), name))


def _alone(name: str) -> Defence:
    """A registered verifier by itself; those that look at weights get the live ones."""
    kind: Any = load(VERIFIERS, name)

    def build(peer: Peer, ground: Ground) -> NodeGuard:
        looks = name in _OF_WEIGHTS
        return VerifierGuard(counting(_of_weights(name, peer, ground) if looks else kind()))

    return Defence(name, build, per_model=name in _OF_WEIGHTS)


def _profile(peer: Peer) -> str:
    """The number format of a swarm whose nodes compute alike, on one kind of hardware."""
    return "float32" if str(peer.model.dtype) == "torch.float32" else "bfloat16"


def _of_weights(name: str, peer: Peer, ground: Ground) -> CompletionVerifier:
    """A registered verifier on the live weights."""
    kind: Any = load(VERIFIERS, name)
    keyed = {"key": ground.key.encode()} if name == "logprob_bound" else {}
    verifier: CompletionVerifier = kind(
        peer.model, peer.tokenizer, sampling=ground.sampling, profile=_profile(peer), **keyed
    )
    return verifier


def _simple(make: Callable[[Peer, Ground], CompletionVerifier]) -> Callable[..., NodeGuard]:
    return lambda peer, ground: VerifierGuard(counting(make(peer, ground)))


def _replay(peer: Peer, ground: Ground) -> SeedReplayVerifier:
    config = ground.config
    return SeedReplayVerifier(
        peer.model, peer.tokenizer, sampling=ground.sampling, coin=ground.coin,
        slots=config.per_node, nodes=config.node_names, profile=_profile(peer),
    )  # fmt: skip


def _longest_needed(peer: Peer, ground: Ground) -> int:
    """Tokens of the longest of the data set's own solutions, with EOS: knowledge of the task."""
    rng = random.Random("max_length")
    solutions = [ground.task.sample(rng).solution for _ in range(_GOLD_SOLUTIONS)]
    encode = peer.tokenizer.encode
    return 1 + max(len(encode(text, add_special_tokens=False)) for text in solutions)


def _distance_to_solution(peer: Peer, ground: Ground) -> CompletionVerifier:
    del peer
    terms = Terms(ground.config, ground.task, ground.coin)
    return DistanceToSolution(terms.problems)


def _homogeneous(peer: Peer, ground: Ground, *, whole_rounds: bool = False) -> NodeGuard:
    """The preset for a shared seed, told whose prompts and slots are whose."""
    config = ground.config
    beside: list[CompletionVerifier] = []
    if config.setting == "vertical":
        beside.append(AssignedPrompts(config.node_names, config.own_prompts))
    if whole_rounds:
        beside.append(WholeRounds(config.prompts * config.group_size // config.nodes))
    assert ground.coin is not None
    return VerifierGuard(
        presets.shared_seed(
            peer.model, peer.tokenizer, ground.sampling, ground.coin,
            state=emptied(ground.folder), policy=COUNTED, beside=beside,
            slots=config.per_node, nodes=config.node_names, profile=_profile(peer),
        )
    )  # fmt: skip


def _same_weights(peer: Peer, ground: Ground) -> VerifierGuard:
    """The preset for nodes that hold the same weights and share no seed."""
    return VerifierGuard(
        presets.same_weights(
            peer.model, peer.tokenizer, ground.sampling,
            state=emptied(ground.folder), policy=COUNTED, profile=_profile(peer),
            key=ground.key.encode(),
        )
    )  # fmt: skip


def _own_prompts(peer: Peer, ground: Ground) -> NodeGuard:
    """Seed replay where nodes choose their problems: what grinding is measured against."""
    return VerifierGuard(counting(_replay(peer, ground)), own_prompts=True)


def _content_spans(peer: Peer, ground: Ground) -> NodeGuard:
    """The content verifiers that name places, and only these places pay."""
    del ground
    verifier = AllOf(
        ScreensVerifier(), ArithmeticVerifier(), CodeVerifier(), RecurrenceVerifier(),
        name="mask_content_span",
    )  # fmt: skip
    return TokenSpanGuard(counting(verifier), peer.tokenizer)


def _heterogeneous(peer: Peer, ground: Ground) -> VerifierGuard:
    """The preset for different weights."""
    return VerifierGuard(
        presets.different_weights(
            state=emptied(ground.folder), policy=replace(COUNTED, on_long="scale")
        )
    )


def _heterogeneous_signed(peer: Peer, ground: Ground) -> NodeGuard:
    """The same behind signatures, with the task's own references."""
    guard = _heterogeneous(peer, ground)
    config = ground.config
    known = {name: node_key(config, name).public for name in config.node_names}
    guard.guard.identity = Identity(KeyRing(known), run=run_name(config))
    guard.guard.references = OfTask(ground.task)
    return guard


def _spot_checks(peer: Peer, ground: Ground, *, percent: int) -> NodeGuard:
    """The same preset on a share of what nodes send.

    Newcomers are looked at no more than others: a run is of one share until somebody is caught.
    """
    share = percent / 100
    whole = _same_weights(peer, ground).guard.verifier
    checked = SpotCheck(whole, share=share, newcomers=share, key=ground.key)
    return VerifierGuard(counting(checked))


_ALL: Final = (
    Defence(COIN, coin=True),
    Defence("kl_0.01", training={"kl_beta": 0.01}),
    Defence("kl_0.1", training={"kl_beta": 0.1}),
    Defence("cap_improbable", training={"cap_below": _IMPROBABLE}),
    Defence(
        "mask_span",
        _simple(lambda peer, ground: _of_weights("logprob_bound", peer, ground)),
        per_model=True,
        training={"mask_spans": True},
    ),
    Defence("mask_content_span", _content_spans, per_model=True, training={"mask_spans": True}),
    Defence("f_tis", training={"filter_kl": _FILTER_KL}),
    Defence("median_baseline", training={"advantage": "median"}),
    Defence("noise_corrected", training={"advantage": "noise_corrected"}),
    Defence("local_share", training={"local_share": _LOCAL_SHARE}),
    Defence("own_majority", training={"reward_by": "own_majority"}),
    Defence("exact_duplicates", _simple(lambda peer, ground: ExactDuplicates())),
    Defence("distance_to_solution", _simple(_distance_to_solution)),
    Defence("shipped_judge", _simple(lambda peer, ground: shipped(ground))),
    Defence("paper_judge", _simple(lambda peer, ground: paper_judge(ground))),
    Defence(
        "paper_logit",
        _simple(lambda peer, ground: PaperLogitVerifier(peer.model, k=ground.config.top_k or 50)),
        per_model=True,
    ),
    *AUTHORS,
    *(
        Defence(f"spot_checks_{percent}", partial(_spot_checks, percent=percent), per_model=True)
        for percent in (5, 10, 25, 50, 100)
    ),
    Defence(
        "max_length",
        _simple(lambda peer, ground: MaxLengthVerifier(_longest_needed(peer, ground))),
        per_model=True,
    ),
    Defence("seed_replay", _simple(_replay), per_model=True, coin=True),
    Defence("own_prompts", _own_prompts, per_model=True, coin=True),
    Defence("whole_rounds", partial(_homogeneous, whole_rounds=True), per_model=True, coin=True),
    Defence("homogeneous", _homogeneous, per_model=True, coin=True),
    Defence("heterogeneous", _heterogeneous),
    Defence("heterogeneous_signed", _heterogeneous_signed, training={"signed": True}),
    Defence("same_weights", _same_weights, per_model=True),
)
_BUILT_IN: Final = {one.name: one for one in _ALL}
