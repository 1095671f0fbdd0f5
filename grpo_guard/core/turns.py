"""A completion's own text by its author, turn by turn, with findings mapped back to the whole.

A known tool result or user turn is not its author's poison: a rule that read it would blame an
author for the tool's wrong equation, and take every tool's output for one node's phrase. So rules
see only the author's turns. A separator keeps them apart, so that no equation or phrase can begin
in one turn and end in another, across text that was removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from grpo_guard.core.completion import Completion
from grpo_guard.core.given import Span, between
from grpo_guard.core.verdict import Verdict

APART = "\n\n.\n\n"
"""Separator of two turns. Rules read across blank lines alone if a line begins with "="."""


@dataclass(frozen=True, slots=True)
class OwnText:
    """A completion without its given spans: only its author's text, ids and log-probs. For each
    turn, ``pieces`` has its span in the whole text and its start here: (start, end, now)."""

    completion: Completion
    pieces: tuple[tuple[int, int, int], ...]

    def whole(self, verdict: Verdict) -> Verdict:
        """The verdict with its findings in characters of the whole completion."""
        if not any(finding.char_span for finding in verdict.findings):
            return verdict
        findings = tuple(
            replace(finding, char_span=finding.char_span and self.place(finding.char_span))
            for finding in verdict.findings
        )
        return replace(verdict, findings=findings)

    def place(self, span: Span) -> Span:
        """Map characters [start, end) to the whole text; the separator belongs to the turn
        before it."""
        start, end = span
        first = self._piece(start)
        last = self._piece(max(start, end - 1))
        begin = min(first[0] + start - first[2], first[1])
        return begin, max(begin, min(last[0] + end - last[2], last[1]))

    def _piece(self, at: int) -> tuple[int, int, int]:
        return next((piece for piece in reversed(self.pieces) if piece[2] <= at), self.pieces[0])


def own_text(completion: Completion) -> OwnText | None:
    """The author's own text; None if that is all of it."""
    spans = completion.verified_spans
    if spans is None:
        return None
    text, now = completion.text, 0
    pieces, parts = [], []
    for start, end in between(spans.chars, len(text)):
        if start < end:
            pieces.append((start, end, now))
            parts.append(text[start:end])
            now += end - start + len(APART)
    return OwnText(_own(completion, APART.join(parts)), tuple(pieces) or ((0, 0, 0),))


def turns(completion: Completion) -> list[OwnText]:
    """Each of the author's turns that is not blank, in order; at least the last one.

    Each has the ids of all turns, because callers do not need them per turn.
    """
    spans, text = completion.verified_spans, completion.text
    around = between(spans.chars if spans else (), len(text))
    spoken = [(start, end) for start, end in around if text[start:end].strip()] or around[-1:]
    own = _own(completion, "")
    return [OwnText(own.with_labels(text=text[a:b], given=None), ((a, b, 0),)) for a, b in spoken]


def own_words(batch: Sequence[Completion]) -> list[Completion]:
    """The batch reduced to its authors' own text."""
    return [one.completion if (one := own_text(completion)) else completion for completion in batch]


def _own(completion: Completion, text: str) -> Completion:
    """A completion with this text, reduced to the ids and log-probs that its author sampled."""
    spans, ids = completion.verified_spans, completion.completion_ids
    if spans is None:
        return completion
    own = completion.with_labels(text=text, given=None)
    if ids is not None:
        drawn = between(spans.tokens, len(ids))
        kept = tuple(token for start, end in drawn for token in ids[start:end])
        own = own.with_labels(completion_ids=kept)
        log_probs = completion.sampler_logprobs
        if log_probs is not None and len(log_probs) == len(ids):
            left = tuple(x for start, end in drawn for x in log_probs[start:end])
            own = own.with_labels(sampler_logprobs=left)
    return own
