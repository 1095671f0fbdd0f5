"""What a guard and its copies share."""

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
        """Record one batch. Called once per batch, in the order of the batches."""


@dataclass(slots=True)
class Sources:
    """Proof of origin, reference answers, processes and the log: a later change also holds for
    reward functions that are wrapped already."""

    identity: Identity | None
    references: References | None
    workers: Workers
    log: VerdictLog | None = None
