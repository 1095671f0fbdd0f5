"""Warn once if verifiers have nothing to do because no completion has a field that they need.

A verifier that skips every completion rejects none, which looks like a clean swarm in the log.
"""

import logging
from collections.abc import Sequence

from grpo_guard.core.completion import Completion
from grpo_guard.core.ensemble import inner_verifiers
from grpo_guard.core.verdict import Cause, Verdict
from grpo_guard.core.verifier import CompletionVerifier

logger = logging.getLogger("grpo_guard")

_COLUMNS = {
    "node": "the name of its sender",
    "task": "the name of its task",
    "completion_ids": "the token ids that were sampled",
}


class IdleWarning:
    """Warns about each missing field once, on the first batch without that field."""

    def __init__(self, verifier: CompletionVerifier, ledger: object = None) -> None:
        self._waiting = idle_without(verifier)
        if ledger is not None and "node" in self._waiting:
            self._waiting["node"].append("the ledger records nobody")

    def mute(self) -> None:
        """Disable the warnings, for callers that omit fields on purpose."""
        self._waiting.clear()

    def look_at(self, batch: Sequence[Completion], verdicts: Sequence[Verdict]) -> None:
        """Warn if no completion of the batch has a field that verifiers need. Completions whose
        sender is not the one they name do not count: they were refused, and lost the name."""
        if not self._waiting:
            return
        pairs = zip(batch, verdicts, strict=True)
        batch = [c for c, verdict in pairs if verdict.cause is not Cause.UNAUTHENTICATED]
        if not batch:
            return
        for field in list(self._waiting):
            if any(getattr(completion, field) is not None for completion in batch):
                continue
            idle = self._waiting.pop(field, None)
            if idle is not None:  # no other thread has warned yet
                logger.warning("%s", _message(field, idle, len(batch)))


def idle_without(verifier: CompletionVerifier) -> dict[str, list[str]]:
    """Map each field to what the verifiers in a tree skip if completions lack that field."""
    found: dict[str, dict[str, None]] = {}
    for member in inner_verifiers(verifier):
        for field, what in member.idle_without.items():
            found.setdefault(field, {})[f"{member.name} {what}"] = None
    return {field: list(idle) for field, idle in found.items()}


def _message(field: str, idle: list[str], count: int) -> str:
    what = _COLUMNS.get(field, "its value")
    return (
        f"none of the {count} completions of this batch has {field!r}, so {'; '.join(idle)}. "
        f"Give each completion {what}: a dataset column {field!r} in TRL, a field {field!r} in "
        f"a JSONL line, Completion({field}=...) in Python. This warning comes once"
    )
