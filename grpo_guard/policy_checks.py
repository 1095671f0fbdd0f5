"""Which policies a verifier can serve: none that would pay for what it lets its authors do; and
whether anything in it says that ids and text belong together."""

from __future__ import annotations

from typing import Any

from grpo_guard.detokenizer import Detokenizer
from grpo_guard.ensemble import Cascade
from grpo_guard.nodes.intake import STANDING_VERIFIER
from grpo_guard.policy import Policy
from grpo_guard.verifier import CompletionVerifier, Composed


def own_detokenizer(verifier: CompletionVerifier) -> Detokenizer | None:
    """Of the tokenizer that a verifier has; None where it has none."""
    own = verifier.own_tokenizer
    return None if own is None else Detokenizer.of(own)


def detokenizer_for(
    verifier: CompletionVerifier, tokenizer: Any
) -> tuple[Detokenizer | None, bool]:
    """What reads ids for a verifier, and whether completions may bring ids at all.

    They may where their text is decoded from them or compared with them, or where no verdict
    depends on the text.

    Args:
        verifier: Its own tokenizer is taken where it does not compare every completion itself.
        tokenizer: One, or a `Detokenizer`; None = none is given.
    """
    compared = verifier.compares_ids or not verifier.reads_text
    if tokenizer is None and not compared:
        tokenizer = verifier.own_tokenizer
    return None if tokenizer is None else Detokenizer.of(
        tokenizer
    ), compared or tokenizer is not None


def require_fitting(verifier: CompletionVerifier, policy: Policy) -> None:
    """Raises ValueError where a policy would pay for what a verifier lets its authors do."""
    if policy.watches:
        return  # it pays nobody for anything
    if "no_gain" in policy.rules("on_reject"):
        _require_standing_asked(verifier)
    if "pass" in policy.rules("on_abstain"):
        require_no_abstention_at_will(verifier)


def _require_standing_asked(verifier: CompletionVerifier) -> None:
    """Refuse a cascade whose later members know who is excluded: what is rejected before them is
    not shown to them, and an excluded node would get its say back by tripping a screen.

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


def require_no_abstention_at_will(verifier: CompletionVerifier) -> None:
    """Refuse what would pay the author of a completion for making a member abstain.

    Raises:
        ValueError: naming the member and the remedy.
    """
    way = verifier.author_can_abstain
    if way is None and verifier.steps_aside:
        way = (
            f"{verifier.name} sets completions aside by what their senders claim or leave out, and "
            "nothing else looks at them; put a verifier beside it that looks at all"
        )
    if way is not None:
        raise ValueError(
            "Policy.on_abstain: 'pass' would pay whoever makes the guard abstain, and an author "
            f"can: {way}, or choose on_abstain='skip' or 'zero'"
        )
