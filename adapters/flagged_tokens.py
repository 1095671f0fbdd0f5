"""Which tokens a rejection rests on, for trainers that can take single tokens out of the loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from grpo_guard.verdict import Cause, Verdict

Span: TypeAlias = tuple[int, int]


def flagged_tokens(verdict: Verdict, length: int) -> tuple[Span, ...]:
    """The tokens that a rejection rests on, half-open; empty where it rests on more than tokens.

    Each verifier that rejects must name tokens. Were one enough, a completion that is bad as a
    whole could buy itself free with a single improbable token. Where all tokens are named nothing
    is left that could earn: its reward, kept, would only raise the baseline against the others.

    Args:
        verdict: Of one completion.
        length: Its tokens.
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


def covers(spans: Sequence[Span], length: int) -> bool:
    """Whether no token is left."""
    reached = 0
    for start, end in sorted(spans):
        if start > reached:
            break
        reached = max(reached, end)
    return reached >= length


def without(kept: Span, spans: Sequence[Span]) -> list[Span]:
    """What is left of a stretch of tokens without the others, in order."""
    start, end = kept
    left = []
    for a, b in sorted(spans):
        if start < min(a, end):
            left.append((start, min(a, end)))
        start = max(start, b)
    return [*left, (start, end)] if start < end else left
