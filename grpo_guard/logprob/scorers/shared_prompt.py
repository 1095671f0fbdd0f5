"""A group's prompt run once, checked against plain rows before it is believed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.scorers.forward import row_states, shared_states
from grpo_guard.logprob.scorers.memory import ran_out_of_memory

logger = logging.getLogger("grpo_guard")

# Mean relative difference of hidden states. An architecture whose cache cannot be shared is off by
# far more; bf16 rounds at 4e-3.
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-4}
LOW_PRECISION_TOLERANCE = 3e-2
CHECKED_ROWS = 2


class SharedPrompts:
    """Shared passes for as long as they give what plain rows give.

    The first group is run both ways, and again whenever a group is more than twice as long as all
    that were checked: a sliding window shows only beyond its length. An architecture that fails,
    by an exception or by other numbers, is scored by plain rows from then on.
    """

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled
        self._checked_length = 0

    def states(self, body: Any, group: Sequence[Encoded], device: torch.device) -> Tensor:
        """Hidden states that predict the group's tokens, [N, H]."""
        if not self.enabled:
            return row_states(body, group, device)
        try:
            states = shared_states(body, group, device)
        except Exception as error:
            if ran_out_of_memory(error):
                raise
            self._disable(body, f"{type(error).__name__}: {str(error)[:200]}")
            return row_states(body, group, device)
        length = len(group[0].prompt_ids) + max(len(s.completion_ids) for s in group)
        if length > 2 * self._checked_length:
            error_size = self._difference(body, group, states, device)
            if not error_size <= TOLERANCE.get(states.dtype, LOW_PRECISION_TOLERANCE):
                self._disable(body, f"hidden states differ by {error_size:.2g} from plain rows")
                return row_states(body, group, device)
            self._checked_length = length
        return states

    @staticmethod
    def _difference(
        body: Any, group: Sequence[Encoded], states: Tensor, device: torch.device
    ) -> float:
        rows = group[:CHECKED_ROWS]
        expected = row_states(body, rows, device).float()
        got = states[: len(expected)].float()
        scale = expected.norm(dim=-1).clamp_min(1e-6)
        return float(((got - expected).norm(dim=-1) / scale).mean())

    def _disable(self, body: Any, reason: str) -> None:
        self.enabled = False
        logger.warning(
            "%s: prompts are run once per completion, because sharing them failed: %s",
            type(body).__name__,
            reason,
        )
