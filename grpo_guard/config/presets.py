"""Recommended guards, one per kind of swarm, each with the policy that measured best.

.. code-block:: python

    guard = presets.different_weights(state="guard-state")

A preset returns an ordinary `Guard`. ``policy=`` replaces the preset's policy. All presets except
`failures_only` also take ``state=`` for the guard's memory, ``beside=`` for additional verifiers,
and ``workers=`` for processes that read texts. In a guard file, write ``preset: NAME`` with the
same options next to it. For measurements, see docs/swarm-results.md.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal

from grpo_guard.config.preset_parts import (
    checked,
    guard_of,
    of_share,
    on_model,
    reader_of,
    require_share,
    store_of,
)
from grpo_guard.content.cut_off import CutOffVerifier
from grpo_guard.content.length.scaling import LengthScaling
from grpo_guard.core.naming import near
from grpo_guard.core.registry import needing_extra
from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.guard import Guard
from grpo_guard.guard.graders import GraderFailures
from grpo_guard.guard.policy import Policy
from grpo_guard.judge.backends.base import Backend
from grpo_guard.logprob.coin import PublicCoin
from grpo_guard.nodes.store import NodeStore
from grpo_guard.nodes.usual_lengths import UsualLengths

logger = logging.getLogger("grpo_guard")

# Text checks and judges sometimes reject honest work. Completions that "drop" removes are never
# unlearnt, so they become more common; "no_gain" lets those below their group's mean lose.
_NOT_UNLEARNT: Final = ("no_gain", "drop", "zero")
POLICIES: Final[Mapping[str, Policy]] = {
    "same_weights": Policy(),
    "shared_seed": Policy(),
    "different_weights": Policy(on_reject=_NOT_UNLEARNT),
    "judged": Policy(on_reject=_NOT_UNLEARNT),
    "failures_only": Policy("drop", "skip"),
}
"""The policy of each preset. Of several rules, the first one that the trainer can carry out
applies; a single rule that it cannot carry out is refused."""


@checked
def same_weights(
    model: Any | str,
    tokenizer: Any,
    sampling: SamplingSpec,
    *,
    state: str | os.PathLike[str] | NodeStore | None = None,
    policy: Policy | None = None,
    alpha: float = 1e-3,
    share: float = 1.0,
    beside: Sequence[CompletionVerifier] = (),
    workers: int | None = None,
    ordinary: Sequence[str] = (),
    **options: Any,
) -> Guard:
    """Guard for nodes that hold the same weights: log-prob bound, recurring phrases and a ledger.

    The log-prob bound bets against a node at positions that the preceding text leads up to, such as
    the result after an equals sign. If the policy itself considers a wrong digit likely, no bet can
    win. A wrong equation in a possibly right answer is therefore masked from the loss for everyone
    alike, and nobody is accused (`FalseSumsVerifier`). Other poison that the policy considers
    likely is invisible to this guard, but not to `shared_seed`.

    Args:
        model: The policy: the model object that is being trained, or the folder or id of a model to
            load, such as ``"org/policy"``.
        tokenizer: The tokenizer of the policy, as from ``AutoTokenizer.from_pretrained``; None if
            ``model`` is a folder or id, from which the tokenizer is loaded too.
        sampling: The sampling that every node declares, such as engine ``"vllm"``, temperature 1.0,
            top_k 50 and top_p 1.0.
        state: Folder for everything remembered about nodes, created if missing, or the `NodeStore`
            of such a folder. Several processes can share it. None keeps the state only until the
            process ends.
        policy: Policy to use instead of ``POLICIES["same_weights"]``.
        alpha: Maximum share of honest completions that each verifier may reject.
        share: Share of a settled node's completions that are scored, in (0, 1]; see `SpotCheck`.
            Rules read all completions, and `FormVerifier` checks the form of all completions.
        beside: Additional verifiers.
        workers: Number of processes in which rules read texts, see `Guard`.
        ordinary: Your task's own words, such as those of a template that honest answers share;
            phrases of these words convict nobody, see `RecurrenceVerifier`.
        **options: Options of `LogProbBoundVerifier`, and of its ``from_pretrained`` if the model is
            loaded.

    Raises:
        ValueError, TypeError: as for `LogProbBoundVerifier`; or ``state`` is not a folder.
        ImportError: transformers or torch is missing; the message names the install command.
    """
    from grpo_guard.content.arithmetic.verifier import FalseSumsVerifier
    from grpo_guard.content.recurrence.verifier import RecurrenceVerifier

    store = store_of(state)
    require_share(share)
    options |= {"alpha": alpha, "store": store}
    kind = needing_extra("grpo_guard.logprob.bounds", "LogProbBoundVerifier")
    bound = on_model(kind, model, tokenizer, sampling=sampling, **options)
    phrases = RecurrenceVerifier(alpha=alpha, swarm="homogeneous", ordinary=ordinary, store=store)
    scored = of_share(bound, share, store, options.get("key"))
    stack = *beside, *scored, FalseSumsVerifier(), phrases
    chosen = policy or POLICIES["same_weights"]
    return guard_of("same_weights", store, chosen, *stack, workers=workers)


@checked
def shared_seed(
    model: Any | str,
    tokenizer: Any,
    sampling: SamplingSpec,
    coin: PublicCoin | str,
    *,
    state: str | os.PathLike[str] | NodeStore | None = None,
    policy: Policy | None = None,
    alpha: float = 1e-3,
    share: float = 1.0,
    beside: Sequence[CompletionVerifier] = (),
    workers: int | None = None,
    **options: Any,
) -> Guard:
    """Guard for nodes that sample under a public coin: seed replay and a ledger.

    On top of seed replay, any other check could only reject honest work. Call ``begin_round`` of
    the guard's `SeedReplayVerifier` at the start of each round.

    Args:
        model: The policy: the model object that is being trained, or the folder or id of a model to
            load, such as ``"org/policy"``.
        tokenizer: The tokenizer of the policy, as from ``AutoTokenizer.from_pretrained``; None if
            ``model`` is a folder or id, from which the tokenizer is loaded too.
        sampling: The sampling that every node declares, such as engine ``"vllm"``, temperature 1.0,
            top_k 50 and top_p 1.0.
        coin: The coin of the run, a `PublicCoin`, or the run's name, such as ``"run-7"``, if the
            run uses no beacons.
        state, alpha, share, beside, workers: As for `same_weights`. If ``share`` is below 1 and
            ``beside`` is empty, the replay verifier is ``guard.verifier.members[1].member``.
        policy: Policy to use instead of ``POLICIES["shared_seed"]``.
        **options: Options of `SeedReplayVerifier`, most importantly ``slots`` and ``nodes``.

    Raises:
        ValueError, TypeError: as for `SeedReplayVerifier`; or ``state`` is not a folder.
        ImportError: transformers or torch is missing; the message names the install command.
    """
    coin = PublicCoin(coin) if isinstance(coin, str) else coin
    store = store_of(state)
    require_share(share)
    options |= {"coin": coin, "alpha": alpha, "store": store}
    kind = needing_extra("grpo_guard.logprob.replay.verifier", "SeedReplayVerifier")
    replay = on_model(kind, model, tokenizer, sampling=sampling, **options)
    stack = *beside, *of_share(replay, share, store)
    chosen = policy or POLICIES["shared_seed"]
    return guard_of("shared_seed", store, chosen, *stack, workers=workers)


@checked
def different_weights(
    model: Any | str | None = None,
    tokenizer: Any = None,
    *,
    reader: Any | str | None = None,
    frozen: Any | None = None,
    state: str | os.PathLike[str] | NodeStore | None = None,
    policy: Policy | None = None,
    beside: Sequence[CompletionVerifier] = (),
    workers: int | None = None,
    length: bool = False,
    length_scaling: LengthScaling | None = None,
    ordinary: Sequence[str] = (),
) -> Guard:
    """Guard for nodes with different models: text checks and a ledger.

    With a model, usually the policy in training, a reader confirms or excuses what the rules find,
    and finds foreign sentences not covered by any rule; see `ReaderVerifier`.

    Args:
        model: The reader's model: the policy in training as an object, or the folder or id of a
            model to load. If both this and ``reader`` are None, only rules decide.
        tokenizer: The policy's tokenizer, or a `Detokenizer`. It decodes the token ids that a
            trainer trains on, see `Guard`; if ``model`` is an object, the reader uses it too. If
            None, the tokenizer of a loaded ``model`` is used. Without any tokenizer, completions
            with ids are rejected, unless an adapter decodes them with the trainer's tokenizer.
        reader: A `SpanReader`, or the folder or id of a model to load, instead of ``model``. Its
            tokenizer need not be the policy's and decodes no ids: pass ``tokenizer`` for that.
        frozen: A second model that reads alongside ``model`` but is not trained, see `SpanReader`.
        state: Folder for everything remembered about nodes, as for `same_weights`.
        policy: Policy to use instead of ``POLICIES["different_weights"]``.
        beside, workers, ordinary: As for `same_weights`.
        length: Whether to scale the rewards of nodes that adapt their answer length to the reward;
            off because honest models whose wrong answers are short look alike.
        length_scaling: How to scale the rewards; passing it turns ``length`` on.

    Raises:
        ValueError: ``state`` is not a folder, or there is no model at ``model`` or ``reader``.
        TypeError: both ``model`` and ``reader`` are given, or a model lacks its tokenizer.
        ImportError: transformers or torch is missing; the message names the install command.
    """
    scales = _scales(length, length_scaling)
    store = store_of(state)
    reads = reader_of(model, tokenizer, reader, frozen)
    if reads is not None and model is not None and tokenizer is None:
        tokenizer = reads.tokenizer
    chosen = policy or POLICIES["different_weights"]
    if scales:  # a guard file always passes a whole policy
        chosen = replace(chosen, on_long=("scale", "keep"))
    stack = *beside, *_text_rules(store, ordinary, confirm=reads is not None)
    return guard_of(
        "different_weights",
        store,
        chosen,
        *stack,
        length_scaling=_stored(length_scaling or LengthScaling(), store),
        reader=reads,
        tokenizer=tokenizer,
        workers=workers,
    )


def _scales(length: object, length_scaling: LengthScaling | None) -> bool:
    if not isinstance(length, bool):
        raise TypeError(f"different_weights.length: expected True or False, got {length!r:.80}")
    return length or length_scaling is not None


def _stored(scaling: LengthScaling, store: NodeStore) -> LengthScaling:
    """Move the record of usual lengths into the store, unless it already has its own."""
    if isinstance(scaling.past, UsualLengths) and scaling.past.store is None:
        return replace(scaling, past=UsualLengths(store=store))
    return scaling


def _text_rules(
    store: NodeStore, ordinary: Sequence[str], *, confirm: bool
) -> list[CompletionVerifier]:
    """Build the rules for `different_weights`; ``confirm`` leaves doubts to a `ReaderVerifier`."""
    from grpo_guard.content.arithmetic.verifier import ArithmeticVerifier
    from grpo_guard.content.code.verifier import CodeVerifier
    from grpo_guard.content.recurrence.verifier import RecurrenceVerifier
    from grpo_guard.content.screens.answer_words import AnswerWordsVerifier
    from grpo_guard.content.screens.verifier import ScreensVerifier

    return [
        ScreensVerifier(confirm=confirm),
        ArithmeticVerifier(confirm=confirm, store=store),
        AnswerWordsVerifier(confirm=confirm, store=store),
        CodeVerifier(reach=True, confirm=confirm),
        RecurrenceVerifier(ordinary=ordinary, confirm=confirm, store=store),
    ]


@checked
def judged(
    backend: Backend | Mapping[str, Any] | Literal["shipped"] | None = None,
    *,
    state: str | os.PathLike[str] | NodeStore | None = None,
    policy: Policy | None = None,
    beside: Sequence[CompletionVerifier] = (),
    tokenizer: Any = None,
    workers: int | None = None,
    **options: Any,
) -> Guard:
    """Guard in which a language model decides, except for nodes that the ledger has convicted.

    Args:
        backend: Required: the model that judges, such as
            ``{"type": "openai", "base_url": "http://127.0.0.1:8000/v1", "model": NAME}``.
            ``"shipped"`` is a toy: it rejects everything but the bundled task of its tests.
        state, beside, tokenizer, workers: As for `different_weights`.
        policy: Policy to use instead of ``POLICIES["judged"]``.
        **options: Options of `JudgeVerifier`.

    Raises:
        ValueError: as for `JudgeVerifier`; or there is no ``backend``, or no key for the backend;
            or ``state`` is not a folder. A server that cannot be reached is only logged, because it
            might start after the trainer.
    """
    if backend is None:
        raise ValueError(
            'backend: expected the model that judges, such as {"type": "openai", "base_url": '
            '"http://127.0.0.1:8000/v1", "model": NAME}, got none; "shipped" is a toy that '
            "rejects everything but the bundled task"
        )
    from grpo_guard.judge.verifier import JudgeVerifier

    judge = JudgeVerifier(backend, **options)
    if problem := judge.backend.unready():
        raise ValueError(f"backend: {problem}")
    if problem := judge.backend.unreached():
        logger.warning("backend: %s. Until then, the judge abstains", problem)
    stack, store = (*beside, judge), store_of(state)
    chosen = policy or POLICIES["judged"]
    return guard_of("judged", store, chosen, *stack, tokenizer=tokenizer, workers=workers)


@checked
def failures_only(
    *,
    policy: Policy | None = None,
    timeout: float | None = None,
    each: bool = False,
    truncated: bool = True,
    tokenizer: Any = None,
) -> Guard:
    """Guard for trusted nodes: failures do not become zeros. Not a defence: content is unchecked.

    A failed completion leaves its group, rather than lowering the group's mean with a reward of 0
    and being unlearnt. A completion fails if the reward function raises, takes too long, or returns
    None or NaN; if the completion was cut off before its end; or if an adapter could not read it. A
    trainer that cannot remove completions is refused when the reward function is decorated. Raises
    ValueError if ``timeout`` is out of range.

    Args:
        policy: Policy to use instead of ``POLICIES["failures_only"]``.
        timeout: Time limit for a call of the reward function, in seconds. With a time limit,
            non-async functions are called in a worker process, see `GraderFailures`.
        each: Whether to grade the completions of a batch one by one, so that a failure costs only
            one completion. Not for functions that compare completions within a batch.
        truncated: Whether a truncated rollout counts as a failure. If not, it keeps its reward, for
            example because hitting the limit should be punished.
        tokenizer: As for `different_weights`; if None, token ids are not checked either.
    """
    return Guard(
        CutOffVerifier(truncated),
        policy=policy or POLICIES["failures_only"],
        failures=GraderFailures(timeout=timeout, each=each),
        tokenizer=tokenizer,
    )


PRESETS: Final[Mapping[str, Callable[..., Guard]]] = {
    preset.__name__: preset
    for preset in (same_weights, shared_seed, different_weights, judged, failures_only)
}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        nearest = near(list(PRESETS), name)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        known = "" if name.startswith("__") else f"; the presets are {', '.join(PRESETS)}{hint}"
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{known}")
