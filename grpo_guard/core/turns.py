"""The text that a completion's author wrote, turn by turn, with findings mapped back to the whole.

Text that is known to come from a tool or user is not the author's poison: a rule that read it would
blame the author for the tool's wrong equation, and mistake phrases printed by every tool for one
node's phrase. So rules see only the author's turns. A separator keeps these turns apart, so that no
equation or phrase can begin in one turn and end in another, across the removed text.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from grpo_guard.core.completion import Completion
from grpo_guard.core.given import Span, between
from grpo_guard.core.verdict import Verdict

APART = "\n\n.\n\n"
"""Separator between two turns. Blank lines alone would not do: rules read on across them if the
next line begins with "="."""


@dataclass(frozen=True, slots=True)
class OwnText:
    """A completion without its given spans: only its author's text, ids and log-probs.

    ``pieces`` locates each turn as (start, end, now): its span in the whole text, and its start in
    the reduced text.
    """

    completion: Completion
    pieces: tuple[tuple[int, int, int], ...]

    def whole(self, verdict: Verdict) -> Verdict:
        """Return the verdict with its findings located in characters of the whole completion."""
        if not any(finding.char_span for finding in verdict.findings):
            return verdict
        findings = tuple(
            replace(finding, char_span=finding.char_span and self.place(finding.char_span))
            for finding in verdict.findings
        )
        return replace(verdict, findings=findings)

    def place(self, span: Span) -> Span:
        """Map a span of characters [start, end) to the whole text; a separator counts as the end of
        the turn before it."""
        start, end = span
        first = self._piece(start)
        last = self._piece(max(start, end - 1))
        begin = min(first[0] + start - first[2], first[1])
        return begin, max(begin, min(last[0] + end - last[2], last[1]))

    def _piece(self, at: int) -> tuple[int, int, int]:
        return next((piece for piece in reversed(self.pieces) if piece[2] <= at), self.pieces[0])


def own_text(completion: Completion) -> OwnText | None:
    """Reduce a completion to the text that its author wrote; None if there is nothing to remove."""
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
    """Return the author's non-blank turns in order; if all are blank, only the last.

    Each result has the ids of all turns, because callers do not need the ids per turn.
    """
    spans, text = completion.verified_spans, completion.text
    around = between(spans.chars if spans else (), len(text))
    spoken = [(start, end) for start, end in around if text[start:end].strip()] or around[-1:]
    own = _own(completion, "")
    return [OwnText(own.with_labels(text=text[a:b], given=None), ((a, b, 0),)) for a, b in spoken]


def own_words(batch: Sequence[Completion]) -> list[Completion]:
    """Reduce each completion of a batch to the text that its author wrote."""
    return [one.completion if (one := own_text(completion)) else completion for completion in batch]


def _own(completion: Completion, text: str) -> Completion:
    """Copy a completion with this text and only its author's ids and log-probs."""
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
