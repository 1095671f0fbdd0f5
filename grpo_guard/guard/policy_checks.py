"""Check that a verifier can serve a policy, which must never pay for what authors can cause, and
that some part of it checks that ids and text match."""

from __future__ import annotations

from typing import Any, Protocol

from grpo_guard.core.detokenizer import Detokenizer
from grpo_guard.core.ensemble import Cascade, inner_verifiers
from grpo_guard.core.quoting import shown
from grpo_guard.core.verifier import CompletionVerifier, Composed
from grpo_guard.guard.policy import Policy
from grpo_guard.nodes.intake import STANDING_VERIFIER


def own_detokenizer(verifier: CompletionVerifier) -> Detokenizer | None:
    """The detokenizer of a verifier's own tokenizer; None if it has none."""
    own = verifier.own_tokenizer
    return None if own is None else Detokenizer.of(own)


def detokenizer_for(
    verifier: CompletionVerifier, tokenizer: Any
) -> tuple[Detokenizer | None, bool]:
    """The detokenizer for a verifier, and whether completions may bring ids at all.

    They may if their text is decoded from the ids or compared with them, or if no verdict depends
    on the text.

    Args:
        verifier: Its own tokenizer is used if it does not compare every completion itself.
        tokenizer: A tokenizer or a `Detokenizer`; None = use the verifier's.
    """
    compared = verifier.compares_ids or not verifier.reads_text
    if tokenizer is None and not compared:
        tokenizer = verifier.own_tokenizer
    return None if tokenizer is None else Detokenizer.of(
        tokenizer
    ), compared or tokenizer is not None


class CanAbstain(Protocol):
    """What can turn a verdict into an abstention; see `CompletionVerifier`."""

    name: str

    @property
    def author_can_abstain(self) -> str | None:
        """How a completion's author can cause it; None = not at all."""

    @property
    def steps_aside(self) -> bool:
        """Whether it may find a completion NOT_APPLICABLE."""


def require_names(verifier: CompletionVerifier) -> None:
    """Raise TypeError if the verifier, or one inside it, has no name for verdicts and metrics."""
    for inner in inner_verifiers(verifier):
        if not isinstance(inner.name, str) or not inner.name:
            raise TypeError(
                f"{type(inner).__name__}.name: expected a text for verdicts and metrics, got "
                f'{shown(inner.name)}; write name = "long_words" in the class'
            )


def require_fitting(
    verifier: CompletionVerifier, policy: Policy, *others: CanAbstain | None
) -> None:
    """Raise ValueError if a policy would pay for what a verifier lets its authors cause.

    Args:
        verifier: The verifier.
        policy: The policy.
        others: What else takes part in its verdicts.
    """
    if policy.watches:
        return  # it pays for nothing
    if "no_gain" in policy.rules("on_reject"):
        _require_standing_asked(verifier)
    if policy.pays_abstentions:
        for one in (verifier, *others):
            if one is not None:
                require_no_abstention_at_will(one)


def _require_standing_asked(verifier: CompletionVerifier) -> None:
    """Refuse a cascade that asks a `ExclusionVerifier` after other members: rejected completions do
    not reach it, so an excluded node would regain its influence by tripping a screen.

    Raises:
        ValueError: a `Cascade` has a `ExclusionVerifier` in another member than its first.
    """
    if not isinstance(verifier, Composed):
        return
    if isinstance(verifier, Cascade) and any(map(_has_standing, verifier.members[1:])):
        raise ValueError(
            'Policy.on_reject="no_gain": expected ExclusionVerifier as the first member of its '
            f"Cascade, or in an AllOf; got it later in {verifier.name!r}"
        )
    for member in verifier.members:
        _require_standing_asked(member)


def _has_standing(verifier: CompletionVerifier) -> bool:
    if isinstance(verifier, Composed):
        return any(map(_has_standing, verifier.members))
    return verifier.name == STANDING_VERIFIER


def require_no_abstention_at_will(verifier: CanAbstain) -> None:
    """Refuse a policy that would pay an author for making a member abstain.

    Raises:
        ValueError: the message names the member and the remedy.
    """
    way = verifier.author_can_abstain
    if way is None and verifier.steps_aside:
        way = (
            f"{verifier.name} skips completions for what their senders claim or omit, and "
            "nothing else judges them; add a verifier that judges them all"
        )
    if way is not None:
        raise ValueError(
            "Policy.on_abstain: 'pass' would pay authors for making the guard abstain, and they "
            f"can: {way}, or choose on_abstain='skip' or 'zero'"
        )
