"""The review of a guard that only watches (``Policy(on_reject="keep")``) when it fails itself."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Cause, abstain
from grpo_guard.guard.metrics import metrics
from grpo_guard.guard.review import Review

logger = logging.getLogger("grpo_guard")


def unseen(batch: Sequence[Completion], error: Exception) -> Review:
    """The review of a batch that the guard failed on, for example because its disk is full.

    A guard that decides raises: nobody should train unguarded without knowing. A guard that watches
    protects nothing yet, so the run goes on, and the log and ``guard/abstain_rate`` show the gap.
    """
    logger.error("the guard failed; it only watches, so the run goes on", exc_info=error)
    message = f"the guard failed: {type(error).__name__}"
    verdicts = [abstain("guard", Cause.FAULT, message) for _ in batch]
    return Review.of(batch, verdicts, metrics(verdicts))
