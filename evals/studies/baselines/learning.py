"""Other ways to learn from a round: remedies that need only a verifier's findings, or no verifier
at all.

A defence selects one as its `Member`; no other part of a swarm depends on it.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from grpo_guard.core.verdict import Verdict
from grpo_guard.evals.swarm.honest import Member, Spans

# Honest tokens from a policy that samples from its top 50 are seldom less likely than this.
_IMPROBABLE: Final = 0.02


class MaskSpans(Member):
    """A rejected completion whose verdict names tokens keeps its reward and loses only those
    tokens.

    Other rejected completions are treated according to ``on_reject``.
    """

    def left_out(self, verdict: Verdict) -> Spans:
        """Return the token spans that a rejection names, if any."""
        if not verdict.rejected:
            return ()
        return tuple(found.token_span for found in verdict.findings if found.token_span is not None)


class CapImprobable(Member):
    """Scales down positive updates of tokens that the local policy finds improbable."""

    def reweighed(self, weight: Tensor, logprobs: Tensor) -> Tensor:
        """Multiply positive weights by probability / 0.02 if that is below 1."""
        return capped(weight, logprobs, _IMPROBABLE)


def capped(weight: Tensor, logprobs: Tensor, below: float) -> Tensor:
    """Multiply positive weights by probability / ``below`` if that is below 1."""
    factor = (logprobs.exp() / below).clamp(max=1.0)
    return torch.where(weight > 0, weight * factor, weight)
