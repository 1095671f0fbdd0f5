"""FalseSumsVerifier: a wrong equation is left out of the loss, whoever wrote it."""

from __future__ import annotations

from typing import Final

from grpo_guard.content.arithmetic.verifier import ArithmeticVerifier
from grpo_guard.content.severity import ARITHMETIC, Severity
from grpo_guard.nodes.intake import FALSE_SUMS_VERIFIER

# Of what honest nodes have now and then nothing is counted, and who corrects a sum may keep it.
_SEVERITY: Final = {
    kind: Severity.REPORT for kind, severity in ARITHMETIC.items() if severity is Severity.COUNT
} | {"wrong_among_many": Severity.REJECT}


class FalseSumsVerifier(ArithmeticVerifier):
    """`ArithmeticVerifier` for nodes of the same weights: one rule for all, and no accusation.

    Where the policy finds a wrong digit likely, no statistic tells an attacker's from an honest
    slip, and none needs to: a false statement that earns a reward teaches the same from either. So
    a completion with a wrong equation that was read whole is rejected, and the rejection is no
    evidence against its node. Nothing is counted: nodes answer prompts of different difficulty,
    and the one that slips most may have got the hardest. What a node writes more often than the
    policy would shows in the bets at announced places (`logprob/place_bets.py`).
    """

    name = FALSE_SUMS_VERIFIER

    def __init__(self) -> None:
        super().__init__(severity=_SEVERITY)
