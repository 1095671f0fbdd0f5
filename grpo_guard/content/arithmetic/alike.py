"""`FalseSumsVerifier`: keeps every wrong equation out of the loss."""

from __future__ import annotations

from typing import Final

from grpo_guard.content.arithmetic.verifier import ArithmeticVerifier
from grpo_guard.content.severity import Severity
from grpo_guard.nodes.intake import FALSE_SUMS_VERIFIER

# Occasional slips of honest nodes are not counted, and a corrected sum may stay.
_SEVERITY: Final = {
    kind: Severity.REPORT
    for kind, (severity, _) in ArithmeticVerifier.KINDS.items()
    if severity is Severity.COUNT
} | {"wrong_among_many": Severity.REJECT}


class FalseSumsVerifier(ArithmeticVerifier):
    """`ArithmeticVerifier` for nodes with the same weights: one rule for all, and no accusation.

    If the policy finds a wrong digit likely, no statistic distinguishes an attacker from an honest
    slip. None has to: a false statement that earns a reward teaches the same either way. So
    a completion with a wrong, fully parsed equation is rejected, and the rejection is not evidence
    against its node. Nothing is counted: nodes answer prompts of different difficulty, and the one
    that slips most may have got the hardest. A node that writes such tokens more often than the
    policy shows up in the bets at announced places (`logprob/place_bets.py`).
    """

    name = FALSE_SUMS_VERIFIER

    def __init__(self) -> None:
        super().__init__(severity=_SEVERITY)
