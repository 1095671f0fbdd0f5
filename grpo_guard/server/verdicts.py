"""Verdicts for ``/v1/verify``."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from grpo_guard.completion import Completion
from grpo_guard.guard import Guard
from grpo_guard.verdict import Cause, Verdict, abstain

logger = logging.getLogger("grpo_guard")


def judge(guard: Guard, batch: Sequence[Completion]) -> list[Verdict]:
    """One verdict per completion, in order; the guard's ledger is told, if it has one."""
    try:
        _, verdicts = guard.judge(batch)
    except Exception as error:
        # Verdicts that nobody keeps would let a convicted node start anew.
        logger.error("the ledger failed; all abstain", exc_info=error)
        return abstentions(guard, len(batch), Cause.FAULT, "the ledger failed")
    return verdicts


def abstentions(guard: Guard, count: int, cause: Cause, message: str) -> list[Verdict]:
    """What is said of completions that could not be looked at."""
    return [abstain(guard.verifier.name, cause, message)] * count


def as_json(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """As the lines of ``grpo-guard verify``."""
    return {"verdicts": [{"index": i, **v.to_dict()} for i, v in enumerate(verdicts)]}
