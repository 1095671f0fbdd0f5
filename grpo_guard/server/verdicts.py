"""Verdicts for ``/v1/verify``."""

import copy
import logging
from collections import Counter
from collections.abc import Sequence
from functools import partial

from grpo_guard.core.verdict import Cause, Verdict, abstain
from grpo_guard.guard import Guard
from grpo_guard.guard.admission import AdmittedBatch
from grpo_guard.nodes.ledger import EvidenceLedger
from grpo_guard.server.audit import Audit
from grpo_guard.server.batches import Job
from grpo_guard.server.bodies import Asked
from grpo_guard.server.first_rejections import FirstRejections
from grpo_guard.server.late import until_late
from grpo_guard.server.replies import ReplyBody, as_json

logger = logging.getLogger("grpo_guard")


class Verdicts:
    """Answers lists of completions. The guard's ledger records only verdicts that a client is
    waiting for; ``late`` is the message for abstentions on completions that take too long."""

    def __init__(self, guard: Guard, late: str, audit: Audit | None = None) -> None:
        if isinstance(guard.ledger, EvidenceLedger):
            guard.ledger.announces = True  # on a server, nobody reads individual verdicts
        self._guard = copy.copy(guard)
        self._guard.ledger = until_late(guard.ledger)
        self._late, self._audit, self.first = late, audit, FirstRejections()

    def job(self, asked: Asked, request_id: str, size: int) -> Job[ReplyBody]:
        """Build the job for one request, or for a part of a stream."""
        guard, batch = self._guard, asked.completions
        settle = partial(self._settled, asked, request_id)
        # An environment can take its time, and other clients' requests should not wait for it.
        shares_calls = guard.verifier.shares_calls and guard.environment is None
        # For a stream, ``size`` is a proportional share, but a part may hold nearly all the bytes.
        size = max(size, sum(len(completion.text) for completion in batch))
        return Job(partial(guard.admit, batch), settle, shares_calls, len(batch), size)

    def too_late(self, asked: Asked) -> ReplyBody:
        """Abstain on each completion, because time ran out."""
        return self._abstained(asked, Cause.TIMEOUT, self._late)

    def failed(self, asked: Asked, what: str = "the guard") -> ReplyBody:
        """Abstain on each completion, because the guard failed."""
        return self._abstained(asked, Cause.FAULT, f"{what} failed")

    def _settled(
        self,
        asked: Asked,
        request_id: str,
        known: AdmittedBatch | None,
        found: list[Verdict],
    ) -> ReplyBody:
        assert known is not None
        try:
            batch, verdicts = self._guard.record_verdicts(known, found)
        except Exception as error:
            # Unrecorded verdicts would let a convicted node start afresh.
            logger.error("the ledger failed; all abstain", exc_info=error)
            return self.failed(asked, "the ledger")
        self.first.note(batch, verdicts)
        if self._audit is not None:
            self._audit.note(request_id, batch, verdicts, asked.first or 0)
        return reply_body(verdicts, asked)

    def _abstained(self, asked: Asked, cause: Cause, message: str) -> ReplyBody:
        return reply_body([abstain(self._guard.verifier.name, cause, message)] * len(asked), asked)


def reply_body(verdicts: Sequence[Verdict], asked: Asked) -> ReplyBody:
    """Encode verdicts as lines like those of ``grpo-guard verify`` for a part of a stream, else as
    one list. A row has an ``id`` if the client sent one."""
    rows = [
        {"index": i, **({} if known is None else {"id": known}), **verdict.to_dict()}
        for i, (known, verdict) in enumerate(
            zip(asked.ids, verdicts, strict=True), asked.first or 0
        )
    ]
    counted: Counter[str] = Counter(verdict.outcome.value for verdict in verdicts)
    if asked.first is None:
        return ReplyBody(as_json({"verdicts": rows}), counted)
    return ReplyBody("".join(as_json(row) + "\n" for row in rows), counted)
