"""What came from another node and could not be taken as it came: put right, and rejected for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from grpo_guard.completion import Completion
from grpo_guard.supervise import supervised
from grpo_guard.verdict import Cause, Verdict, reject
from grpo_guard.verifier import CompletionVerifier

MALFORMED: Final = "guard_malformed"
"""In the metadata of a completion that an adapter filled or put right: what was wrong with it."""


class Received(CompletionVerifier):
    """Rejects what an adapter had to fill or put right, and shows the others to its member.

    It is no longer what its author wrote, and might pass: an empty text says nothing wrong.
    """

    name = "exchange"
    timeout = None

    def __init__(self, member: CompletionVerifier) -> None:
        self.member = member

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        judged = iter(supervised(self.member, [c for c in batch if MALFORMED not in c.metadata]))
        return [
            reject(self.name, Cause.MALFORMED, str(c.metadata[MALFORMED]))
            if MALFORMED in c.metadata
            else next(judged)
            for c in batch
        ]
