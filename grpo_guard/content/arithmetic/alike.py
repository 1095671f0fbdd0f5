"""`FalseSumsVerifier`: keeps every wrong equation out of the loss."""

from __future__ import annotations

from typing import Final

from grpo_guard.content.arithmetic.verifier import ArithmeticVerifier
from grpo_guard.content.severity import Severity
from grpo_guard.nodes.intake import FALSE_SUMS_VERIFIER

# Kinds otherwise counted, such as occasional slips and corrected sums, are only reported.
_SEVERITY: Final = {
    name: Severity.REPORT
    for name, kind in ArithmeticVerifier.KINDS.items()
    if kind.severity is Severity.COUNT
} | {"wrong_among_many": Severity.REJECT}


class FalseSumsVerifier(ArithmeticVerifier):
    """`ArithmeticVerifier` for nodes with the same weights: one rule for all, and no accusation.

    If the policy considers a wrong digit likely, no statistic can tell an attack from an honest
    slip. Nor does it need to: a false statement that earns a reward teaches the same either way.
    A completion with a wrong, fully parsed equation is therefore rejected, but the rejection is not
    evidence against its node. Nothing is counted, because nodes answer prompts of different
    difficulty, and the node that slips most may just have had the hardest ones. A node that writes
    wrong digits more often than the policy would shows up in the bets at announced places
    (`logprob/place_bets.py`).
    """

    name = FALSE_SUMS_VERIFIER

    def __init__(self) -> None:
        super().__init__(severity=_SEVERITY)
