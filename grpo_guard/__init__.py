"""grpo-guard: verifies completions before they earn a GRPO reward.

Importing this package loads neither torch nor a trainer; both are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from grpo_guard.calibrated import Calibrated, HonestScores
from grpo_guard.completion import Completion, CompletionError
from grpo_guard.decorator import guard
from grpo_guard.detokenizer import Detokenizer
from grpo_guard.ensemble import AllOf, AnyOf, Cascade, Vote, only
from grpo_guard.framework import FrameworkError
from grpo_guard.guard import Guard, Ledger, Review
from grpo_guard.moved import install
from grpo_guard.naming import near
from grpo_guard.policy import AbstainError, Policy
from grpo_guard.prompts import Message
from grpo_guard.registry import register_verifier, with_remedy
from grpo_guard.sampling import SamplingSpec
from grpo_guard.verdict import Cause, Finding, Outcome, Usage, Verdict
from grpo_guard.verifier import CompletionVerifier

if TYPE_CHECKING:
    from grpo_guard.content.arithmetic.verifier import ArithmeticVerifier
    from grpo_guard.content.code.verifier import CodeVerifier
    from grpo_guard.content.length.scaling import LengthScaling
    from grpo_guard.content.length.verifier import LengthVerifier
    from grpo_guard.content.screens.answer_words import AnswerWordsVerifier
    from grpo_guard.content.screens.verifier import ScreensVerifier
    from grpo_guard.judge.verifier import JudgeVerifier
    from grpo_guard.logprob.bounds import LogProbBoundVerifier
    from grpo_guard.logprob.coin import PublicCoin
    from grpo_guard.logprob.reference.verifier import ReferenceLikelihoodVerifier
    from grpo_guard.logprob.replay.verifier import SeedReplayVerifier
    from grpo_guard.logprob.tail import TailProbabilityVerifier
    from grpo_guard.nodes.ledger import EvidenceLedger
    from grpo_guard.nodes.recurrence.verifier import RecurrenceVerifier
    from grpo_guard.nodes.standing_verifier import StandingVerifier
    from grpo_guard.spot_checks import SpotCheck

__version__ = "0.2.0"

_LAZY = {
    "AnswerWordsVerifier": "grpo_guard.content.screens.answer_words",
    "check": "grpo_guard.once",
    "ArithmeticVerifier": "grpo_guard.content.arithmetic.verifier",
    "CodeVerifier": "grpo_guard.content.code.verifier",
    "EvidenceLedger": "grpo_guard.nodes.ledger",
    "JudgeVerifier": "grpo_guard.judge.verifier",
    "LengthScaling": "grpo_guard.content.length.scaling",
    "LengthVerifier": "grpo_guard.content.length.verifier",
    "LogProbBoundVerifier": "grpo_guard.logprob.bounds",
    "PublicCoin": "grpo_guard.logprob.coin",
    "RecurrenceVerifier": "grpo_guard.nodes.recurrence.verifier",
    "ReferenceLikelihoodVerifier": "grpo_guard.logprob.reference.verifier",
    "ScreensVerifier": "grpo_guard.content.screens.verifier",
    "SeedReplayVerifier": "grpo_guard.logprob.replay.verifier",
    "SpotCheck": "grpo_guard.spot_checks",
    "StandingVerifier": "grpo_guard.nodes.standing_verifier",
    "TailProbabilityVerifier": "grpo_guard.logprob.tail",
}

_GONE = {
    "FrequentFindings": (
        "FrequentFindings is gone: pass severity={KIND: 'count'} to the verifier that finds the "
        "kind; taken_back, wrong_textual, wrong_inequality and answer_words count by default"
    ),
}

__all__ = [
    "AbstainError",
    "AllOf",
    "AnswerWordsVerifier",
    "AnyOf",
    "ArithmeticVerifier",
    "Calibrated",
    "Cascade",
    "Cause",
    "CodeVerifier",
    "Completion",
    "CompletionError",
    "CompletionVerifier",
    "Detokenizer",
    "EvidenceLedger",
    "Finding",
    "FrameworkError",
    "Guard",
    "HonestScores",
    "JudgeVerifier",
    "Ledger",
    "LengthScaling",
    "LengthVerifier",
    "LogProbBoundVerifier",
    "Message",
    "Outcome",
    "Policy",
    "PublicCoin",
    "RecurrenceVerifier",
    "ReferenceLikelihoodVerifier",
    "Review",
    "SamplingSpec",
    "ScreensVerifier",
    "SeedReplayVerifier",
    "SpotCheck",
    "StandingVerifier",
    "TailProbabilityVerifier",
    "Usage",
    "Verdict",
    "Vote",
    "check",
    "guard",
    "only",
    "register_verifier",
]

install()


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        try:
            return getattr(importlib.import_module(_LAZY[name]), name)
        except ModuleNotFoundError as error:
            raise with_remedy(error) from None
    if name in _GONE:
        raise ImportError(_GONE[name])  # `from ... import` would hide an AttributeError's message
    nearest = near(__all__, name)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
