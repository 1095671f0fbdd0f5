"""The baselines and parts of stacks that the tables of the results pages compare with, by name."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import Final

from grpo_guard.content.arithmetic.verifier import ArithmeticVerifier
from grpo_guard.content.code.verifier import CodeVerifier
from grpo_guard.content.recurrence.verifier import RecurrenceVerifier
from grpo_guard.content.screens.verifier import ScreensVerifier
from grpo_guard.core.ensemble import AllOf
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.evals.defences.base import Defence, Ground, VerifierGuard, counting
from grpo_guard.evals.defences.registry import (
    by_verifier,
    heterogeneous,
    homogeneous,
    of_weights,
    replay,
    same_weights,
)
from grpo_guard.evals.studies.baselines import learning
from grpo_guard.evals.studies.baselines.authors import AUTHORS
from grpo_guard.evals.studies.baselines.judges import (
    backend_of_environment,
    paper_judge,
    shipped,
)
from grpo_guard.evals.studies.baselines.plain import (
    DistanceToSolution,
    ExactDuplicates,
    MaxLengthVerifier,
    WholeRounds,
)
from grpo_guard.evals.studies.baselines.references import OfTask
from grpo_guard.evals.studies.baselines.signed import SignedTerms, node_key, run_name
from grpo_guard.evals.studies.baselines.spans import TokenSpanGuard
from grpo_guard.evals.swarm.members import NodeGuard, Peer
from grpo_guard.evals.swarm.terms import Terms
from grpo_guard.guard.spot_checks import SpotCheck
from grpo_guard.logprob.replay.verifier import SeedReplayVerifier
from grpo_guard.nodes.identity.gate import Identity
from grpo_guard.nodes.identity.ring import KeyRing

_GOLD_SOLUTIONS: Final = 1000


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


class OwnPrompts(VerifierGuard):
    """Seed replay while nodes choose their problems, to measure grinding against."""

    def begin(self, round: int, prompts: Sequence[str]) -> None:
        """Begin a round of which only the number is known."""
        for part in self._parts:
            if isinstance(part, SeedReplayVerifier):
                part.begin_round(round)


def _own_prompts(peer: Peer, ground: Ground) -> NodeGuard:
    return OwnPrompts(counting(replay(peer, ground), peer.tokenizer))


def _whole_rounds(peer: Peer, ground: Ground) -> NodeGuard:
    """The homogeneous stack, which accepts all of a node's round or nothing."""
    config = ground.config
    owed = config.prompts * config.group_size // config.nodes
    return homogeneous(peer, ground, WholeRounds(owed))


def _content_spans(peer: Peer, ground: Ground) -> NodeGuard:
    """The content verifiers that locate their findings; only those spans pay."""
    del ground
    verifier = AllOf(
        ScreensVerifier(), ArithmeticVerifier(), CodeVerifier(), RecurrenceVerifier(),
        name="mask_content_span",
    )  # fmt: skip
    return TokenSpanGuard(counting(verifier, peer.tokenizer), peer.tokenizer)


def _heterogeneous_signed(peer: Peer, ground: Ground) -> NodeGuard:
    """The same with signatures and the task's own references."""
    guard = heterogeneous(peer, ground)
    config = ground.config
    known = {name: node_key(config, name).public for name in config.node_names}
    guard.guard.identity = Identity(KeyRing(known), run=run_name(config))
    guard.guard.references = OfTask(ground.task)
    return guard


def _spot_checks(peer: Peer, ground: Ground, *, percent: int) -> NodeGuard:
    """The same preset on a share of each node's completions.

    Newcomers are checked no more than others: the share is constant until a node is caught.
    """
    share = percent / 100
    whole = same_weights(peer, ground).guard.verifier
    checked = SpotCheck(whole, share=share, newcomers=share, key=ground.key)
    return VerifierGuard(counting(checked, peer.tokenizer))


DEFENCES: Final = (
    Defence("cap_improbable", member=learning.CapImprobable),
    Defence(
        "mask_span",
        by_verifier(lambda peer, ground: of_weights("logprob_bound", peer, ground)),
        member=learning.MaskSpans,
    ),
    Defence("mask_content_span", _content_spans, member=learning.MaskSpans),
    Defence("f_tis", member=learning.FTIS),
    Defence("median_baseline", member=learning.MedianBaseline),
    Defence("noise_corrected", member=learning.NoiseCorrected),
    Defence("local_share", member=learning.LocalShare),
    Defence("own_majority", member=learning.OwnMajority),
    Defence("exact_duplicates", by_verifier(lambda peer, ground: ExactDuplicates())),
    Defence("distance_to_solution", by_verifier(_distance_to_solution)),
    Defence("shipped_judge", by_verifier(lambda peer, ground: shipped(ground))),
    Defence(
        "paper_judge",
        by_verifier(lambda peer, ground: paper_judge(ground)),
        needs=backend_of_environment,
    ),
    *AUTHORS,
    *(
        Defence(f"spot_checks_{percent}", partial(_spot_checks, percent=percent))
        for percent in (5, 10, 25, 50, 100)
    ),
    Defence(
        "max_length",
        by_verifier(lambda peer, ground: MaxLengthVerifier(_longest_needed(peer, ground))),
    ),
    Defence("own_prompts", _own_prompts, coin=True),
    Defence("whole_rounds", _whole_rounds, coin=True),
    Defence("heterogeneous_signed", _heterogeneous_signed, terms=SignedTerms),
)
