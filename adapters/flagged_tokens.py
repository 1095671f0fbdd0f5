"""The tokens that a rejection is based on, for trainers that can mask individual tokens from the
loss."""

from collections.abc import Sequence
from typing import TypeAlias

from grpo_guard.core.verdict import Cause, Verdict
from grpo_guard.guard.framework import FrameworkError
from grpo_guard.guard.policy import Policy

Span: TypeAlias = tuple[int, int]


def flagged_tokens(verdict: Verdict, length: int) -> tuple[Span, ...]:
    """The tokens that a rejection is based on, as half-open spans in a completion of ``length``
    tokens; empty if no tokens explain the rejection.

    Every verifier that rejects must name tokens: otherwise a completion that is bad as a whole
    could be saved by a single improbable token. If all tokens are named, the result is empty as
    well: with none left to train on, the reward would only raise the group's baseline.
    """
    if not verdict.rejected or verdict.cause is not Cause.JUDGED:
        return ()
    rejecting = [member for member in verdict.members if member.rejected]
    if rejecting:
        of_each = [flagged_tokens(member, length) for member in rejecting]
        spans = tuple(span for spans in of_each for span in spans) if all(of_each) else ()
    else:
        named = [f.token_span for f in verdict.findings if f.token_span is not None]
        spans = tuple((max(0, a), min(b, length)) for a, b in named if max(0, a) < min(b, length))
    return () if covers(spans, length) else spans


def require_maskable(policy: Policy, who: str) -> None:
    """Raise FrameworkError if a policy is incompatible with masking flagged tokens."""
    if policy.watches:
        raise FrameworkError(
            f'{who}: mask_spans removes tokens from the loss, and on_reject="keep" changes '
            "nothing; choose one of the two"
        )
    if policy.chosen().on_long == "scale":
        raise FrameworkError(
            f'{who}: on_long="scale" has no measure for rejected completions, and mask_spans lets '
            "them keep their reward at any length; choose one of the two"
        )


def covers(spans: Sequence[Span], length: int) -> bool:
    """Whether the spans cover all ``length`` tokens."""
    return not without((0, length), spans)


def without(kept: Span, spans: Sequence[Span]) -> list[Span]:
    """Subtract spans from a stretch of tokens, and return the remaining stretches in order."""
    start, end = kept
    left = []
    for a, b in sorted(spans):
        if start < min(a, end):
            left.append((start, min(a, end)))
        start = max(start, b)
    return [*left, (start, end)] if start < end else left
