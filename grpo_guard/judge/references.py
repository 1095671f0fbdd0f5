"""Which reference answers a judge is told.

A reference reads to a judge as the truth. Whoever sends a question with its answer would have right
work rejected by a false one, or would write into it what he wants the judge to read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from grpo_guard.completion import Completion
from grpo_guard.prompts import prompt_key
from grpo_guard.supervise import supervised
from grpo_guard.verdict import Cause, Finding, Verdict
from grpo_guard.verifier import CompletionVerifier

UNUSED: Final = "reference_not_used"


def with_own_references(
    batch: Sequence[Completion], screens: CompletionVerifier | None
) -> tuple[list[Completion], list[Finding | None]]:
    """The completions without the references that a judge must not be told, and notes on these.

    Args:
        batch: Any number of completions.
        screens: What else runs before the judge's calls. A reference that it rejects, or fails on,
            is not used: it may be its sender's, whatever the exchange says. None = nothing runs.

    Returns:
        The completions, in order, and for each a note where its reference is left out.
    """
    told, notes = list(batch), list[Finding | None]([None] * len(batch))
    trusted: dict[tuple[str, str], list[int]] = {}
    for i, completion in enumerate(batch):
        if completion.reference is not None and completion.trusted_reference is None:
            told[i] = completion.with_labels(reference=None)
            notes[i] = Finding(
                UNUSED, "its reference came with a question that may be a stranger's"
            )
        elif completion.reference is not None:
            key = (prompt_key(completion.prompt), completion.reference)
            trusted.setdefault(key, []).append(i)
    if screens is None or not trusted:
        return told, notes
    read = [Completion(batch[of[0]].prompt, text) for (_, text), of in trusted.items()]
    for places, verdict in zip(trusted.values(), supervised(screens, read), strict=True):
        if not _passes(verdict):
            for i in places:
                told[i] = batch[i].with_labels(reference=None)
                notes[i] = Finding(
                    UNUSED, f"its reference does not pass the screens: {verdict.reason}"
                )
    return told, notes


def _passes(verdict: Verdict) -> bool:
    return verdict.accepted or verdict.cause is Cause.NOT_APPLICABLE
