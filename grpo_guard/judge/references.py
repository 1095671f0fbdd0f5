"""Decide which reference answers a judge may see.

A judge takes a reference as the truth. Anyone who sends a question together with its answer could
use a false reference to have correct work rejected, or to address the judge.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from grpo_guard.core.completion import Completion
from grpo_guard.core.prompts import prompt_key
from grpo_guard.core.supervise import supervised
from grpo_guard.core.verdict import Cause, Finding
from grpo_guard.core.verifier import CompletionVerifier

UNUSED: Final = "reference_not_used"


def with_own_references(
    batch: Sequence[Completion], screens: CompletionVerifier | None
) -> tuple[list[Completion], list[Finding | None]]:
    """Remove the references that a judge must not see. Return the completions, plus a note for each
    one whose reference was removed and None for the others.

    A reference that the screens reject or fail on is not used: its sender may control it,
    regardless of what the exchange claims.
    """
    shown, notes = list(batch), list[Finding | None]([None] * len(batch))
    trusted: dict[tuple[str, str], list[int]] = {}
    for i, completion in enumerate(batch):
        if completion.reference is not None and completion.trusted_reference is None:
            shown[i] = completion.with_labels(reference=None)
            notes[i] = Finding(UNUSED, "its reference came with an untrusted question")
        elif completion.reference is not None:
            key = (prompt_key(completion.prompt), completion.reference)
            trusted.setdefault(key, []).append(i)
    if screens is None or not trusted:
        return shown, notes
    read = [Completion(batch[of[0]].prompt, text) for (_, text), of in trusted.items()]
    for places, verdict in zip(trusted.values(), supervised(screens, read), strict=True):
        if not (verdict.accepted or verdict.cause is Cause.NOT_APPLICABLE):
            for i in places:
                shown[i] = batch[i].with_labels(reference=None)
                notes[i] = Finding(
                    UNUSED, f"its reference does not pass the screens: {verdict.reason}"
                )
    return shown, notes
