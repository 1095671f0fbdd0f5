"""Assemble a preset's `Guard` from a store, a stack of verifiers and a ledger."""

from __future__ import annotations

import os
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from grpo_guard.content.length.scaling import LengthScaling
from grpo_guard.core.arguments import is_finite
from grpo_guard.core.ensemble import AllOf
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.guard import Guard
from grpo_guard.guard.policy import Policy
from grpo_guard.guard.state_owner import claim_state
from grpo_guard.nodes.exclusion_verifier import ExclusionVerifier
from grpo_guard.nodes.store import NodeStore

if TYPE_CHECKING:
    from grpo_guard.logprob.reader.reader import SpanReader


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
    reader: SpanReader | None = None,
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
