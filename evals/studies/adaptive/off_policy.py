"""TEXT for nodes that weigh tokens by the log-probs the sender claims for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from grpo_guard.evals.attacks.adversary import Forged, View, closed
from grpo_guard.evals.attacks.text import TextAttack
from grpo_guard.evals.tasks.base import Problem

CLAIMED: Final = -50.0
"""Log-prob that `LyingLogprobs` claims for each token, in nats: below that of any real one."""


class LyingLogprobs(TextAttack):
    """TEXT with the claim that its sampler found every token next to impossible.

    A node that weighs tokens by pi / pi_gen then gives the poison the largest possible weight. The
    opposite lie, that all was certain, would take weight from the attacker's own phrase.
    """

    name = "lying_logprobs"

    def forge(self, view: View, problem: Problem) -> Forged | None:
        """Forge the poison with invented log-probs for each of its tokens."""
        forged = super().forge(view, problem)
        if forged is None:
            return None
        forged = closed(view, forged)
        return replace(forged, logprobs=(CLAIMED,) * len(forged.ids or ()))
