"""All kinds of findings, collected from the tables that the rules declare."""

from collections.abc import Mapping
from typing import Final

from grpo_guard.content.arithmetic.verifier import ArithmeticVerifier
from grpo_guard.content.code.verifier import CodeVerifier
from grpo_guard.content.extras.language import LanguageVerifier
from grpo_guard.content.extras.pii import PiiVerifier
from grpo_guard.content.extras.secrets import SecretsVerifier
from grpo_guard.content.extras.toxicity import ToxicityVerifier
from grpo_guard.content.length.verifier import LengthVerifier
from grpo_guard.content.recurrence.verifier import RecurrenceVerifier
from grpo_guard.content.screens.answer_words import AnswerWordsVerifier
from grpo_guard.content.screens.verifier import ScreensVerifier
from grpo_guard.content.severity import Kind

RULES: Final = (
    ArithmeticVerifier,
    AnswerWordsVerifier,
    ScreensVerifier,
    CodeVerifier,
    LengthVerifier,
    RecurrenceVerifier,
    SecretsVerifier,
    PiiVerifier,
    LanguageVerifier,
    ToxicityVerifier,
)

KINDS: Final[Mapping[str, Kind]] = {
    name: kind for rule in RULES for name, kind in rule.KINDS.items()
}
"""Maps each kind of finding to what it does. A kind shared by two rules is the same in both."""
