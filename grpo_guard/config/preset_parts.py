"""The parts of presets: checked arguments, verifiers and readers on a model, the whole guard."""

import functools
import inspect
import os
from collections.abc import Callable
from dataclasses import fields
from hashlib import blake2b
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from grpo_guard.content.length.scaling import LengthScaling
from grpo_guard.core.arguments import expected_verifier, is_finite, several_verifiers, worded
from grpo_guard.core.detokenizer import Detokenizer
from grpo_guard.core.ensemble import AllOf
from grpo_guard.core.model_paths import missing
from grpo_guard.core.quoting import shown
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.guard import Guard
from grpo_guard.guard.policy import Policy, not_a_policy
from grpo_guard.guard.state_owner import claim_state
from grpo_guard.nodes.exclusion_verifier import ExclusionVerifier
from grpo_guard.nodes.store import NodeStore

if TYPE_CHECKING:
    from grpo_guard.logprob.reader.reader import SpanReader

_OF_POLICY: Final = frozenset(field.name for field in fields(Policy))

_ON_GUARD: Final = {
    "log": "guard.log = PATH",
    "identity": "guard.identity = Identity(...)",
    "references": "guard.references = References(...)",
    "environment": "guard = guard.with_environment(...)",
    "failures": "guard.failures = GraderFailures(...)",
}
"""Argument of `Guard` that no preset takes -> how it is given to a preset's guard."""

F = TypeVar("F", bound=Callable[..., Guard])


def checked(preset: F) -> F:
    """Give a preset readable errors about its arguments, as `worded` does for functions."""
    name, made, own = preset.__name__, worded(preset), inspect.signature(preset).parameters.keys()

    @functools.wraps(preset)
    def call(*args: Any, **kwargs: Any) -> Guard:
        if len(args) == 1 and isinstance(args[0], FunctionType) and not kwargs:
            raise TypeError(
                f"presets.{name}: expected options in brackets, got the function "
                f"{args[0].__name__!r}; write @presets.{name}(...)"
            )
        for option in kwargs.keys() & _OF_POLICY:
            rule = f"{option}={kwargs[option]!r:.40}"
            raise TypeError(
                f"presets.{name}: expected {option} in a policy, got it as an option; write "
                f"policy=Policy({rule})"
            )
        for option in kwargs.keys() & _ON_GUARD.keys() - own:
            raise TypeError(
                f"presets.{name}: expected {option} to be set on the guard, got it as an option; "
                f"write guard = presets.{name}(...) and {_ON_GUARD[option]}"
            )
        if not isinstance(kwargs.get("policy"), Policy | None):
            raise not_a_policy(f"presets.{name}.policy", kwargs["policy"])
        if "beside" in kwargs:
            where = f"presets.{name}.beside"
            kwargs["beside"] = several_verifiers(where, kwargs["beside"])
            for i, member in enumerate(kwargs["beside"]):
                if not isinstance(member, CompletionVerifier):
                    raise expected_verifier(f"{where}[{i}]", member)
        return made(*args, **kwargs)

    return call  # type: ignore[return-value]


def on_model(kind: Any, model: Any, tokenizer: Any, **options: Any) -> CompletionVerifier:
    """Build a log-prob verifier on a model object, or load the model from a folder or by id."""
    _require_no_tokenizer(model, "model, tokenizer, sampling")
    if isinstance(model, str | os.PathLike):
        if problem := missing(os.fspath(model)):
            raise ValueError(f"model: {problem}")
        if tokenizer is not None:
            raise TypeError(
                f"tokenizer: expected None with the name of a model, which is loaded with its own, "
                f"got a {type(tokenizer).__name__}. In training, pass the model object that is "
                "trained, not its name: a loaded copy does not learn"
            )
        loaded: CompletionVerifier = kind.from_pretrained(os.fspath(model), **options)
        return loaded
    verifier: CompletionVerifier = kind(model, tokenizer, **options)
    return verifier


def _require_no_tokenizer(model: Any, order: str) -> None:
    if callable(getattr(model, "convert_tokens_to_ids", None)):
        raise TypeError(
            f"model: expected a causal language model, got a tokenizer ({type(model).__name__}); "
            f"the order is {order}"
        )


def reader_of(
    model: Any | str | None, tokenizer: Any, reader: Any | str | None, frozen: Any | None
) -> "SpanReader | None":
    """Return the given reader, or a new reader on the given model; None if neither is given."""
    if model is not None and reader is not None:
        raise TypeError("reader: expected None together with model, since either is the reader")
    given = reader if model is None else model
    _require_no_tokenizer(given, "model, tokenizer")
    if given is None:
        if frozen is not None:
            raise TypeError("frozen: expected None if there is no other reader")
        return None
    from grpo_guard.logprob.reader.reader import SpanReader

    if not isinstance(given, SpanReader | str | os.PathLike) and not callable(given):
        name = "reader" if model is None else "model"
        raise TypeError(f"{name}: expected a model, or its folder or id, got {shown(given)}")
    if isinstance(given, str | os.PathLike):
        return SpanReader.from_pretrained(os.fspath(given), frozen=frozen)
    if not isinstance(given, SpanReader):
        own = tokenizer.tokenizer if isinstance(tokenizer, Detokenizer) else tokenizer
        return SpanReader(given, own, frozen=frozen)
    if frozen is not None:
        raise TypeError("frozen: expected None with a SpanReader, which takes its own")
    return given


def store_of(state: str | os.PathLike[str] | NodeStore | None) -> NodeStore:
    """Return the given store, or the store in a folder; None gives a temporary store that lasts
    until the process ends."""
    return state if isinstance(state, NodeStore) else NodeStore(state)


def require_share(share: Any) -> None:
    """Raise TypeError unless ``share`` is in (0, 1], before a model is loaded."""
    if not is_finite(share) or not 0 < share <= 1:
        raise TypeError(f"share: expected a number in (0, 1], got {share!r:.80}")


def of_share(
    verifier: Any, share: float, store: NodeStore, key: bytes | None = None
) -> list[CompletionVerifier]:
    """Restrict a log-prob verifier to a share of each node's completions, and add a verifier that
    checks the form of all completions.

    A ``key`` makes the choice of completions reproducible, as it does the verifier's own draws.
    """
    if share == 1:
        return [verifier]
    from grpo_guard.guard.spot_checks import SpotCheck
    from grpo_guard.logprob.form import FormVerifier

    drawn = None if key is None else blake2b(key, person=b"spot checks").hexdigest()
    return [SpotCheck(verifier, share=share, key=drawn, store=store), FormVerifier(verifier)]


def guard_of(
    name: str,
    store: NodeStore,
    policy: Policy,
    *verifiers: CompletionVerifier,
    length_scaling: LengthScaling | None = None,
    reader: "SpanReader | None" = None,
    tokenizer: Any = None,
    workers: int | None = None,
) -> Guard:
    """Build a guard from the verifiers and a ledger, with an `ExclusionVerifier` that rejects
    completions from nodes that the ledger has convicted."""
    ledger = store.ledger()
    stack: CompletionVerifier = AllOf(ExclusionVerifier(ledger), *verifiers, name=name)
    if reader is not None:
        from grpo_guard.logprob.reader.verifier import ReaderVerifier

        stack = ReaderVerifier(stack, reader, store=store)
    guard = Guard(
        stack, policy=policy, ledger=ledger, length_scaling=length_scaling,
        tokenizer=tokenizer, workers=workers,
    )  # fmt: skip
    claim_state(store, stack)
    return guard
