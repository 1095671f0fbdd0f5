"""bfloat16 as a number format, for machines on which native products are too slow to sample."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

ROUNDED = "bfloat16-rounded"


def rounded_to_bfloat16(model: Any) -> Any:
    """A copy whose weights and whose every module's output are rounded to bfloat16.

    Products accumulate in float32, as they do on a GPU's matrix units; what happens inside a module
    (rotary embeddings, the softmax of attention) is not rounded. Noise of the same kind as native
    bfloat16, not bit for bit the same.
    """
    rounded = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in rounded.parameters():
            parameter.copy_(_round(parameter))
    for module in rounded.modules():
        module.register_forward_hook(_round_output)
    return rounded


def _round_output(module: nn.Module, arguments: Any, output: Any) -> Any:
    if isinstance(output, Tensor):
        return _round(output)
    if type(output) is tuple:  # a model's output object holds what its parts have rounded already
        return tuple(_round(x) if isinstance(x, Tensor) else x for x in output)
    return None


def _round(x: Tensor) -> Tensor:
    return x.bfloat16().float() if x.dtype == torch.float32 else x
