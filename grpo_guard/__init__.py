"""grpo-guard: verifies completions before they earn a GRPO reward.

Importing this package loads neither torch nor a trainer; both are imported on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

from grpo_guard.core.completion import Completion
from grpo_guard.core.ensemble import AllOf, AnyOf, Cascade
from grpo_guard.core.moved import from_the_top, install, place_of
from grpo_guard.core.naming import near
from grpo_guard.core.registry import needing_extra, register_verifier
from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.core.verdict import Cause, Finding, Outcome, Verdict, abstain, accept, reject
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.core.version import __version__ as __version__
from grpo_guard.guard import Guard, Review
from grpo_guard.guard.decorator import guard
from grpo_guard.guard.policy import AbstainError, Policy

if TYPE_CHECKING:
    from grpo_guard.config import presets
    from grpo_guard.config.once import check
    from grpo_guard.content.arithmetic.verifier import ArithmeticVerifier
    from grpo_guard.content.code.verifier import CodeVerifier
    from grpo_guard.content.recurrence.verifier import RecurrenceVerifier
    from grpo_guard.content.screens.verifier import ScreensVerifier
    from grpo_guard.judge.verifier import JudgeVerifier
    from grpo_guard.logprob.bounds import LogProbBoundVerifier
    from grpo_guard.logprob.replay.verifier import SeedReplayVerifier
    from grpo_guard.nodes.ledger import EvidenceLedger

_LAZY = {
    "ArithmeticVerifier": "grpo_guard.content.arithmetic.verifier",
    "CodeVerifier": "grpo_guard.content.code.verifier",
    "EvidenceLedger": "grpo_guard.nodes.ledger",
    "JudgeVerifier": "grpo_guard.judge.verifier",
    "LogProbBoundVerifier": "grpo_guard.logprob.bounds",
    "RecurrenceVerifier": "grpo_guard.content.recurrence.verifier",
    "ScreensVerifier": "grpo_guard.content.screens.verifier",
    "SeedReplayVerifier": "grpo_guard.logprob.replay.verifier",
    "check": "grpo_guard.config.once",
}

__all__ = [
    "AbstainError",
    "AllOf",
    "AnyOf",
    "ArithmeticVerifier",
    "Cascade",
    "Cause",
    "CodeVerifier",
    "Completion",
    "CompletionVerifier",
    "EvidenceLedger",
    "Finding",
    "Guard",
    "JudgeVerifier",
    "LogProbBoundVerifier",
    "Outcome",
    "Policy",
    "RecurrenceVerifier",
    "Review",
    "SamplingSpec",
    "ScreensVerifier",
    "SeedReplayVerifier",
    "Verdict",
    "abstain",
    "accept",
    "check",
    "guard",
    "presets",
    "register_verifier",
    "reject",
]

install()


def __getattr__(name: str) -> Any:
    if name == "presets":
        return importlib.import_module("grpo_guard.config.presets")
    if name in _LAZY:
        return needing_extra(_LAZY[name], name)
    if (moved := from_the_top(name)) is not None:
        return moved
    hint = ""
    if place := place_of(name):
        hint = f": from {place} import {name}"
    elif nearest := near(__all__, name):
        hint = f"; did you mean {nearest[0]!r}?"
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
