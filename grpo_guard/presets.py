"""The recommended guards, one for each kind of swarm, each with the policy that was measured best.

.. code-block:: python

    guard = presets.different_weights(state="guard-state")

They are ordinary `Guard` objects. Each takes ``policy=`` in place of its own, ``state=`` for
what it remembers, and ``beside=`` for verifiers of your own. In a guard file: ``preset: NAME`` with
the same options beside it. Figures: docs/swarm-results.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from grpo_guard.completion import Completion
from grpo_guard.content.length.scaling import LengthScaling
from grpo_guard.ensemble import AllOf
from grpo_guard.graders import GraderFailures
from grpo_guard.guard import Guard
from grpo_guard.judge.backends.base import Backend
from grpo_guard.logprob.coin import PublicCoin
from grpo_guard.nodes.standing_verifier import StandingVerifier
from grpo_guard.nodes.store import NodeStore
from grpo_guard.nodes.usual_lengths import UsualLengths
from grpo_guard.policy import Policy
from grpo_guard.sampling import SamplingSpec
from grpo_guard.verdict import Cause, Verdict, accept, reject
from grpo_guard.verifier import CompletionVerifier

# Honest work is rejected now and then by checks of the text and by judges: what "drop" leaves out
# is not unlearnt, and its share grows.
_NOT_UNLEARNT: Final = ("no_gain", "drop", "zero")
POLICIES: Final[Mapping[str, Policy]] = {
    "same_weights": Policy(),
    "shared_seed": Policy(),
    "different_weights": Policy(on_reject=_NOT_UNLEARNT, on_long=("scale", "keep")),
    "judged": Policy(on_reject=_NOT_UNLEARNT),
    "failures_only": Policy("drop", "skip"),
}
"""The policy of each preset. Where a place has several rules, the first that the trainer can carry
out holds; one that stands alone is refused where it cannot."""


def same_weights(
    model: Any | str,
    tokenizer: Any,
    sampling: SamplingSpec,
    *,
    state: str | os.PathLike[str] | NodeStore | None = None,
    policy: Policy | None = None,
    alpha: float = 1e-3,
    beside: Sequence[CompletionVerifier] = (),
    **options: Any,
) -> Guard:
    """For nodes that hold the same weights: the bound on log-probs, recurring phrases, the ledger.

    The bound bets against a node at places that the text before them announces, such as the result
    behind an equals sign. Where the policy itself finds a wrong digit likely, no bet can win: so a
    wrong equation in an answer that may be right is left out of the loss for everyone alike, and
    accuses nobody (`FalseSumsVerifier`). Other poison that the policy finds likely it cannot see;
    `shared_seed` can.

    Args:
        model: The policy, the very object that is being trained; or a folder or model id to load.
        tokenizer: Its tokenizer; None where the model is loaded.
        sampling: What every node is declared to sample with.
        state: Folder for all that is remembered of nodes, made where there is none, which several
            processes may share, or the `NodeStore` in it; None = kept until the process ends.
        policy: In place of ``POLICIES["same_weights"]``.
        alpha: Of each verifier: share of honest completions that it may reject.
        beside: Verifiers that judge as well.
        **options: Of `LogProbBoundVerifier`, and of its ``from_pretrained`` where it is loaded.

    Raises:
        ValueError, TypeError: as `LogProbBoundVerifier`; or ``state`` is no folder.
        ImportError: transformers or torch is missing; with the command that installs it.
    """
    from grpo_guard import LogProbBoundVerifier  # which says what to install without torch
    from grpo_guard.content.arithmetic.alike import FalseSumsVerifier
    from grpo_guard.nodes.recurrence.verifier import RecurrenceVerifier

    store = _store(state)
    options |= {"alpha": alpha, "store": store}
    bound = _on(LogProbBoundVerifier, model, tokenizer, sampling=sampling, **options)
    phrases = RecurrenceVerifier(alpha=alpha, swarm="homogeneous", store=store)
    return _guard("same_weights", store, policy, *beside, bound, FalseSumsVerifier(), phrases)


def shared_seed(
    model: Any | str,
    tokenizer: Any,
    sampling: SamplingSpec,
    coin: PublicCoin | str,
    *,
    state: str | os.PathLike[str] | NodeStore | None = None,
    policy: Policy | None = None,
    alpha: float = 1e-3,
    beside: Sequence[CompletionVerifier] = (),
    **options: Any,
) -> Guard:
    """For nodes that sample under a public coin: seed replay and the ledger.

    Beside a replay, other checks could only cost honest work. Call ``begin_round`` of its
    `SeedReplayVerifier` as each round begins.

    Args:
        model, tokenizer, sampling: As for `same_weights`.
        coin: The coin, or the name of a run without beacons.
        state, alpha, beside: As for `same_weights`.
        policy: In place of ``POLICIES["shared_seed"]``.
        **options: Of `SeedReplayVerifier`; ``slots`` and ``nodes`` above all.

    Raises:
        ValueError, TypeError: as `SeedReplayVerifier`; or ``state`` is no folder.
        ImportError: transformers or torch is missing; with the command that installs it.
    """
    from grpo_guard import SeedReplayVerifier

    coin = PublicCoin(coin) if isinstance(coin, str) else coin
    store = _store(state)
    options |= {"coin": coin, "alpha": alpha, "store": store}
    replay = _on(SeedReplayVerifier, model, tokenizer, sampling=sampling, **options)
    return _guard("shared_seed", store, policy, *beside, replay)


def different_weights(
    *,
    state: str | os.PathLike[str] | NodeStore | None = None,
    policy: Policy | None = None,
    beside: Sequence[CompletionVerifier] = (),
    length: bool = True,
    length_scaling: LengthScaling | None = None,
) -> Guard:
    """For nodes whose models differ: checks of the text, length as a factor, and the ledger.

    It needs neither weights nor a judge.

    Args:
        state: Folder for what is remembered of nodes, as for `same_weights`.
        policy: In place of ``POLICIES["different_weights"]``.
        beside: Verifiers that judge as well.
        length: Whether length is a factor where the trainer can scale rewards; it rejects nobody.
            False: rewards are not scaled, unless ``policy`` says so.
        length_scaling: The factors; None = each node is measured by its own past once it has one,
            by its group before that: ``LengthScaling(past=True)``. What is given without ``past``
            measures all by the group.

    Raises:
        ValueError: ``state`` is no folder.
    """
    from grpo_guard.content.arithmetic.verifier import ArithmeticVerifier
    from grpo_guard.content.code.verifier import CodeVerifier
    from grpo_guard.content.screens.answer_words import AnswerWordsVerifier
    from grpo_guard.content.screens.verifier import ScreensVerifier
    from grpo_guard.nodes.recurrence.verifier import RecurrenceVerifier

    store = _store(state)
    scaling = length_scaling or LengthScaling(past=True)
    if isinstance(scaling.past, UsualLengths) and scaling.past.store is None:
        scaling = replace(scaling, past=UsualLengths(store=store))
    own = POLICIES["different_weights"]
    return _guard(
        "different_weights",
        store,
        policy or (own if length else replace(own, on_long="keep")),
        *beside,
        ScreensVerifier(),
        ArithmeticVerifier(store=store),
        AnswerWordsVerifier(store=store),
        CodeVerifier(reach=True),
        RecurrenceVerifier(store=store),
        length_scaling=scaling,
    )


def judged(
    backend: Backend | Mapping[str, Any] | None = None,
    *,
    state: str | os.PathLike[str] | NodeStore | None = None,
    policy: Policy | None = None,
    beside: Sequence[CompletionVerifier] = (),
    **options: Any,
) -> Guard:
    """A language model decides, behind screens, with the ledger.

    Args:
        backend: The model, or ``{"type": "openai", ...}``; None = the judge that ships, which
            knows the bundled task and nothing else.
        state, beside: As for `different_weights`.
        policy: In place of ``POLICIES["judged"]``.
        **options: Of `JudgeVerifier`.

    Raises:
        ValueError: as `JudgeVerifier`; or ``state`` is no folder.
    """
    from grpo_guard.judge.verifier import JudgeVerifier

    return _guard("judged", _store(state), policy, *beside, JudgeVerifier(backend, **options))


def failures_only(
    *, policy: Policy | None = None, timeout: float | None = None, truncated: bool = True
) -> Guard:
    """For nodes that are trusted: a failure is not a zero. No defence: nothing is looked at.

    What failed leaves its group, in place of lowering the mean as a 0 and being unlearnt: a
    completion of which the reward function raises, takes too long, or says None or NaN; one that
    was cut off before its end; and one that an adapter could not read. Where a trainer can leave
    nothing out, this is refused at decoration.

    Args:
        policy: In place of ``POLICIES["failures_only"]``.
        timeout: Seconds that a call of the reward function may take, see `GraderFailures`.
        truncated: Whether a rollout that was cut off is a failure. False, as where reaching the
            limit is to be punished: it keeps its reward.

    Raises:
        ValueError: ``timeout`` is out of range.
    """
    return Guard(
        _Failures(truncated),
        policy=policy or POLICIES["failures_only"],
        failures=GraderFailures(timeout=timeout),
    )


PRESETS: Final[Mapping[str, Callable[..., Guard]]] = {
    preset.__name__: preset
    for preset in (same_weights, shared_seed, different_weights, judged, failures_only)
}


class _Failures(CompletionVerifier):
    name = "failures_only"
    judges_alone = True

    def __init__(self, truncated: bool) -> None:
        self.truncated = truncated

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        return [self._verdict(c.finish_reason) for c in batch]

    def _verdict(self, finish_reason: str | None) -> Verdict:
        if self.truncated and finish_reason == "length":
            return reject(self.name, Cause.OVERLONG, "it was cut off before its end")
        return accept(self.name)


def _guard(
    name: str,
    store: NodeStore,
    policy: Policy | None,
    *verifiers: CompletionVerifier,
    length_scaling: LengthScaling | None = None,
) -> Guard:
    """Verifiers behind the nodes' standing, with the ledger that it comes from."""
    ledger = store.ledger()
    return Guard(
        AllOf(StandingVerifier(ledger), *verifiers, name=name),
        policy=policy or POLICIES[name],
        ledger=ledger,
        length_scaling=length_scaling,
    )


def _on(kind: Any, model: Any, tokenizer: Any, **options: Any) -> CompletionVerifier:
    """A verifier that reads log-probs, on a model or on one that is loaded."""
    if isinstance(model, str | os.PathLike):
        if tokenizer is not None:
            raise TypeError("tokenizer: expected None beside a model that is loaded with its own")
        loaded: CompletionVerifier = kind.from_pretrained(os.fspath(model), **options)
        return loaded
    verifier: CompletionVerifier = kind(model, tokenizer, **options)
    return verifier


def _store(state: str | os.PathLike[str] | NodeStore | None) -> NodeStore:
    return state if isinstance(state, NodeStore) else NodeStore(state)
