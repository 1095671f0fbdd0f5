"""TRL: find the sequences that importance-sampling correction will mask, before the baseline.

With vLLM, TRL compares the sampler's log-probs of each token with the policy's. Under
``vllm_importance_sampling_mode="sequence_mask"``, its default, a sequence whose ratio is out of
bounds is excluded from the loss, but its reward still counts toward the group's mean and deviation.
"""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

LogProbs: TypeAlias = Sequence[Sequence[float | None]]


def sampling_of(generated: Sequence[Any]) -> LogProbs | None:
    """Return the sampler's log-probs, recognised by their form in the result of `_generate`; None
    if there are none."""
    ids = generated[1]
    for item in generated[2:]:
        if isinstance(item, list) and len(item) == len(ids) and all(map(_are_numbers, item, ids)):
            return item
    return None


def _are_numbers(row: Any, ids: Sequence[int]) -> bool:
    form = isinstance(row, list | tuple) and len(row) == len(ids)
    return form and all(x is None or isinstance(x, float) for x in row)


def corrects_sequences(trainer: Any) -> bool:
    """Whether TRL masks whole sequences in this trainer's batches."""
    options = ("use_vllm", "vllm_importance_sampling_correction")
    mode = getattr(trainer, "vllm_importance_sampling_mode", None)
    return mode == "sequence_mask" and all(getattr(trainer, name, False) for name in options)


def masked_sequences(
    trainer: Any,
    policy: Tensor | None,
    sampling: LogProbs | None,
    drawn: Sequence[Sequence[int]] | None,
    rows: int,
) -> list[bool]:
    """Whether TRL will mask each row, [B], by TRL's own formula: exp of the summed differences
    between the policy's log-probs before the rewards, [B, C], and the sampler's, one list per row;
    only those tokens count that the model drew (1 in ``drawn``, one list per row, if given)."""
    if policy is None or sampling is None or not corrects_sequences(trainer):
        return [False] * rows
    least = getattr(trainer, "vllm_importance_sampling_clip_min", None)
    most = getattr(trainer, "vllm_importance_sampling_clip_max", None)
    masked = []
    for i, row in enumerate(sampling):
        claimed = torch.tensor(
            [math.nan if x is None else x for x in row], device=policy.device, dtype=policy.dtype
        )
        # A token that vLLM could not score does not change the ratio, as in TRL.
        difference = torch.nan_to_num(policy[i, : len(row)] - claimed, nan=0.0)
        if drawn is not None:
            difference = difference * torch.tensor(drawn[i], device=policy.device)
        ratio = float(torch.exp(difference.sum()))
        low, high = -math.inf if least is None else least, math.inf if most is None else most
        masked.append(not low <= ratio <= high)
    return masked
