"""Check that a verifier suits a policy, and whether completions may come with token ids.

A policy must never pay for abstentions that authors can cause. Ids are allowed only if the text is
decoded from or compared with them, or if no verdict depends on the text.
"""

from typing import Any

from grpo_guard.core.detokenizer import Detokenizer
from grpo_guard.core.ensemble import Cascade, inner_verifiers
from grpo_guard.core.quoting import shown
from grpo_guard.core.verifier import CompletionVerifier, Composed
from grpo_guard.guard.policy import Policy
from grpo_guard.guard.workers.texts import Workers
from grpo_guard.nodes.intake import STANDING_VERIFIER


def own_detokenizer(verifier: CompletionVerifier) -> Detokenizer | None:
    """The detokenizer for a verifier's own tokenizer; None if the verifier has no tokenizer."""
    own = verifier.own_tokenizer
    return None if own is None else Detokenizer.of(own)


def detokenizer_for(
    verifier: CompletionVerifier, tokenizer: Any
) -> tuple[Detokenizer | None, bool]:
    """Return the detokenizer for a verifier, and whether completions may come with token ids.

    Without a ``tokenizer``, the verifier's own is used, unless the verifier itself compares ids
    with the text or does not read the text.
    """
    compared = verifier.compares_ids or not verifier.reads_text
    if tokenizer is None and not compared:
        tokenizer = verifier.own_tokenizer
    if tokenizer is None:
        return None, compared
    return Detokenizer.of(tokenizer), True


def require_names(verifier: CompletionVerifier) -> None:
    """Raise TypeError if the verifier or a nested verifier has no name for verdicts and metrics."""
    for inner in inner_verifiers(verifier):
        if not isinstance(inner.name, str) or not inner.name:
            raise TypeError(
                f"{type(inner).__name__}.name: expected a text for verdicts and metrics, got "
                f'{shown(inner.name)}; write name = "long_words" in the class'
            )


def require_fitting(
    verifier: CompletionVerifier, policy: Policy, *others: CompletionVerifier | Workers | None
) -> None:
    """Raise ValueError if a policy does not suit a verifier.

    The policy must not pay for abstentions that authors can cause, either in the verifier or in
    ``others``, which can turn its verdicts into abstentions. Under "no_gain", a cascade must not
    ask an `ExclusionVerifier` after other members.
    """
    if policy.watches:
        return  # no verdict changes a reward
    if "no_gain" in policy.rules("on_reject"):
        _require_standing_asked(verifier)
    if policy.pays_abstentions:
        for one in (verifier, *others):
            if one is not None:
                _require_no_abstention_at_will(one)


def _require_standing_asked(verifier: CompletionVerifier) -> None:
    """Raise ValueError if a cascade asks an `ExclusionVerifier` after other members. Completions
    rejected by those members would not reach it, so an excluded node could regain influence by
    tripping a screen."""
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


def _require_no_abstention_at_will(
    verifier: CompletionVerifier | Workers,
) -> None:
    """Raise ValueError, stating the remedy, if a completion's author can cause an abstention."""
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
