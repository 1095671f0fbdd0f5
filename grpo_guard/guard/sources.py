"""The parts that a guard shares with its copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Verdict
from grpo_guard.guard.verdict_log import VerdictLog
from grpo_guard.guard.workers.texts import Workers

if TYPE_CHECKING:
    from grpo_guard.guard.references import References
    from grpo_guard.nodes.identity.gate import Identity


class Ledger(Protocol):
    """Accumulates evidence per node over time."""

    def record(self, batch: Sequence[Completion], verdicts: Sequence[Verdict]) -> None:
        """Record one batch. Called once for each batch, in order."""


@dataclass(slots=True)
class Sources:
    """A guard's identity check, reference answers, worker processes and log. They are shared, so
    that later changes also affect reward functions already wrapped."""

    identity: Identity | None
    references: References | None
    workers: Workers
    log: VerdictLog | None = None
