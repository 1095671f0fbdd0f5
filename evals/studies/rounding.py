"""Emulated bfloat16, for machines whose native bfloat16 products are too slow for sampling."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

ROUNDED = "bfloat16-rounded"


def rounded_to_bfloat16(model: Any) -> Any:
    """Copy a model and round its weights and the outputs of all its modules to bfloat16.

    Products accumulate in float32, as on a GPU's matrix units; intermediate values inside a module
    (rotary embeddings, the softmax of attention) are not rounded. The noise is of the same kind as
    with native bfloat16, but not identical bit for bit.
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
    if type(output) is tuple:  # a model's output object holds values already rounded
        return tuple(_round(x) if isinstance(x, Tensor) else x for x in output)
    return None


def _round(x: Tensor) -> Tensor:
    return x.bfloat16().float() if x.dtype == torch.float32 else x
