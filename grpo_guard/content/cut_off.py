"""`CutOffVerifier`: rejects completions that were cut off, for `presets.failures_only`."""

from collections.abc import Sequence

from grpo_guard.core.completion import Completion
from grpo_guard.core.scope import Scope
from grpo_guard.core.verdict import Cause, Verdict, accept, reject
from grpo_guard.core.verifier import CompletionVerifier


class CutOffVerifier(CompletionVerifier):
    """Rejects completions that were cut off before they ended, and checks nothing else.

    Args:
        truncated: Whether to reject completions that were cut off.
    """

    name = "failures_only"
    scope: Scope = "completion"
    reads_text = False

    def __init__(self, truncated: bool) -> None:
        self.truncated = truncated

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        """Return one verdict per completion, based on its ``finish_reason``."""
        return [self._verdict(c.finish_reason) for c in batch]

    def _verdict(self, finish_reason: str | None) -> Verdict:
        if self.truncated and finish_reason == "length":
            return reject(self.name, Cause.OVERLONG, "it was cut off before its end")
        return accept(self.name)
