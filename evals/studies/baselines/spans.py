"""Locates content verifiers' findings in tokens, so that only those tokens miss the update.

Content verifiers see characters, but the update weights tokens. A token that shares a character
with a finding counts as part of the finding.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Cause, Finding, Verdict
from grpo_guard.evals.swarm.members import VerifierGuard
from grpo_guard.guard import Guard, Review

# In a malformed or overlong completion, a finding's location does not cover the other faults.
_LOCAL: Final = (Cause.JUDGED, Cause.SCREENED)


class TokenSpanGuard(VerifierGuard):
    """A guard whose rejections locate findings in tokens as well as in characters."""

    def __init__(self, guard: Guard, tokenizer: Any) -> None:
        super().__init__(guard)
        self._tokenizer = tokenizer

    def review(self, batch: list[Completion]) -> Review:
        found = super().review(batch)
        pairs = zip(found.verdicts, batch, strict=True)
        return replace(found, verdicts=[self._in_tokens(v, c) for v, c in pairs])

    def _in_tokens(self, verdict: Verdict, completion: Completion) -> Verdict:
        if not verdict.rejected or verdict.cause not in _LOCAL:
            return verdict
        if all(finding.char_span is None for finding in verdict.findings):
            return verdict
        ends = token_ends(self._tokenizer, completion.completion_ids or ())
        findings = tuple(_placed(finding, ends) for finding in verdict.findings)
        return replace(verdict, findings=findings)


def token_ends(tokenizer: Any, ids: Sequence[int]) -> list[int]:
    """Return where each token ends, in characters of the decoded text, shape [n].

    Every prefix is decoded, which is correct for any tokenizer whose text grows with its tokens. If
    a character takes several tokens, only the last of them counts as ending it.
    """
    ends, least = [], 0
    for count in range(1, len(ids) + 1):
        text = str(tokenizer.decode(list(ids[:count]), skip_special_tokens=False))
        least = max(least, len(text.rstrip("�")))
        ends.append(least)
    return ends


def token_span(chars: tuple[int, int], ends: Sequence[int]) -> tuple[int, int] | None:
    """Return the span [start, end) of tokens that share a character with ``chars``, if any do."""
    start, end = chars
    touched = []
    for at, stop in enumerate(ends):
        first = ends[at - 1] if at else 0
        # A token that does not end a character belongs to the character that follows.
        if first < end and max(stop, first + 1) > start:
            touched.append(at)
    return (touched[0], touched[-1] + 1) if touched else None


def _placed(finding: Finding, ends: Sequence[int]) -> Finding:
    if finding.char_span is None or finding.token_span is not None:
        return finding
    return replace(finding, token_span=token_span(finding.char_span, ends))
