"""Recurrence findings: where a text contains the phrases its node was convicted of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from grpo_guard.content.recurrence.phrases import shown
from grpo_guard.content.recurrence.places import locate
from grpo_guard.content.recurrence.record import Conviction
from grpo_guard.core.verdict import Finding

_MOST: Final = 8
_WORDS: Final = ("recurring_phrase", "recurring_opening")


def findings_of(
    text: str, node: str, found: Sequence[Conviction], *, unlisted: bool
) -> tuple[Finding, ...]:
    """Return one finding per phrase, at most eight, in the order of the convictions.

    Args:
        text: The completion.
        node: The node that sent the completion.
        found: Convictions of the node whose features occur in the text, strongest first.
        unlisted: Whether the text is in a language not covered by the lists of ordinary words.
            Its phrases then get the kind ``recurring_unlisted``.
    """
    by_phrase = dict[str, Conviction]()
    for conviction in found:
        by_phrase.setdefault(conviction.phrase, conviction)
    shown_ones = list(by_phrase.values())[:_MOST]
    spans = locate(text, [(conviction.phrase, conviction.feature) for conviction in shown_ones])
    findings = list[Finding]()
    for conviction, span in zip(shown_ones, spans, strict=True):
        kind = "recurring_unlisted" if unlisted and conviction.kind in _WORDS else conviction.kind
        whose = "nodes counted together with" if conviction.shared else "node"
        most = f"at most {conviction.other_hits}" if conviction.other_hits else "none"
        message = (
            f"{shown(conviction.phrase)}: in {conviction.hits} of {conviction.total} prompts of "
            f"{whose} {shown(node)}, in {most} of {conviction.other_total} of others"
        )
        findings.append(Finding(kind, message, char_span=span))
    return tuple(findings)
