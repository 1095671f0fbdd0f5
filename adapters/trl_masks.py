"""TRL: tokens taken out of the loss, and the number that the loss is divided by kept right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from grpo_guard.adapters.flagged_tokens import Span


def keep_mask(shape: tuple[int, int], flagged: Sequence[Sequence[Span]], device: Any) -> Tensor:
    """1 where a token may train and 0 where it is flagged, [B, C]."""
    keep = torch.ones(shape, dtype=torch.long, device=device)
    for row, spans in enumerate(flagged):
        for start, end in spans:
            keep[row, start:end] = 0
    return keep


def take_out(
    output: dict[str, Any], keep: Tensor, gather: Callable[[Tensor], Tensor]
) -> dict[str, Any]:
    """GRPOTrainer's batch without the flagged tokens; every rank must call it.

    `tool_mask` takes tokens out of the loss and leaves attention alone. The losses dapo, cispo and
    vespo divide by `num_items_in_batch`, the tokens of all ranks, which TRL counted before.

    Args:
        output: As `_generate_and_score_completions` gives it.
        keep: 0 on flagged tokens, [B, C].
        gather: Brings the ranks' tensors together.
    """
    before = output["completion_mask"]
    if "tool_mask" in output:
        before = before * output["tool_mask"]
    removed = gather((before * (1 - keep)).sum().reshape(1)).sum()
    if not removed:
        return output
    # At least 1: the releases up to 1.6 divide by it as it stands, and all may be flagged.
    items = (output["num_items_in_batch"] - removed).clamp(min=1)
    mask = output["tool_mask"] * keep if "tool_mask" in output else keep
    return {**output, "tool_mask": mask, "num_items_in_batch": items}
