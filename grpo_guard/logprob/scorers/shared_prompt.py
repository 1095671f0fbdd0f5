"""Run a group's prompt only once, after checking the result against running every row in full."""

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

# Tolerated relative difference in hidden states: (mean over tokens, maximum over tokens). If an
# architecture's cache cannot be shared, the difference is far larger; bf16 rounds at 4e-3.
TOLERANCES = (1e-4, 1e-2)
LOW_PRECISION_TOLERANCES = (3e-2, 0.3)
CHECKED_ROWS = 2


def computed_low(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether states of this dtype, computed now, would carry low-precision rounding.

    This includes fp32 states under autocast, which come from bf16 products.
    """
    exact = dtype in (torch.float32, torch.float64)
    return not exact or torch.is_autocast_enabled(device.type)


def disagreement(got: Tensor, expected: Tensor, *, low_precision: bool) -> str | None:
    """Describe how two sets of hidden states, both [N, H], differ, or return None if they agree.

    The mean alone would hide a few wrong tokens among hundreds of right ones, and those few could
    get an honest completion rejected or let a forged completion pass.
    """
    mean_tolerance, largest_tolerance = LOW_PRECISION_TOLERANCES if low_precision else TOLERANCES
    got, expected = got.float(), expected.float()
    relative = (got - expected).norm(dim=-1) / expected.norm(dim=-1).clamp_min(1e-6)
    mean, largest = float(relative.mean()), float(relative.max())
    if not mean <= mean_tolerance:  # NaN fails
        return f"by {mean:.2g} on average"
    return None if largest <= largest_tolerance else f"by {largest:.2g} in one token"


class SharedPrompts:
    """Shares one pass over the prompt within a group, as long as the results match plain rows.

    The first group is run both ways, as is any group more than twice as long as all those checked
    before: a sliding window only shows beyond its length. After an exception or a numerical
    difference, the architecture is scored with plain rows from then on.
    """

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled
        self._checked_length = 0

    def states(self, body: Any, group: Sequence[Encoded], device: torch.device) -> Tensor:
        """Return the hidden states that predict the tokens of a group's completions, [N, H]."""
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
            expected = row_states(body, group[:CHECKED_ROWS], device)
            low = computed_low(states.dtype, device)
            difference = disagreement(states[: len(expected)], expected, low_precision=low)
            if difference:
                self._disable(body, f"hidden states differ from plain rows {difference}")
                return row_states(body, group, device)
            self._checked_length = length
        return states

    def _disable(self, body: Any, reason: str) -> None:
        self.enabled = False
        logger.warning(
            "%s: each completion's prompt is run separately, because sharing it failed: %s",
            type(body).__name__,
            reason,
        )
