"""The output head of a causal language model, which maps hidden states to logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


class HeadError(ValueError):
    """Raised when statistics cannot be computed from the model's output head."""


@dataclass(frozen=True, slots=True)
class Head:
    """A linear head: logits = scale * (hidden @ weight.T + bias), then soft-capped."""

    weight: Tensor  # [V, H], any float dtype and layout; may be tied to the embedding
    bias: Tensor | None = None  # [V]
    scale: float = 1.0  # Cohere's ``logit_scale``, 1 / Granite's ``logits_scaling``
    softcap: float | None = None  # Gemma's ``final_logit_softcapping``: c * tanh(logits / c)

    @property
    def vocab_size(self) -> int:
        return self.weight.shape[0]


@dataclass(frozen=True, slots=True)
class ForeignHead:
    """A head that is not a plain linear layer, such as one with LoRA or quantised weights.

    The module's own forward runs on a few rows at a time, so that the [rows, V] logits stay small.
    This is slower than tiles but just as exact as the module. Scale and soft-cap are as in `Head`.
    """

    module: nn.Module  # maps [N, H] to [N, V]
    vocab_size: int
    scale: float = 1.0
    softcap: float | None = None

    def logits(self, hidden: Tensor) -> Tensor:
        """Return raw logits in the module's own dtype: [N, H] -> [N, V]."""
        z: Tensor = self.module(hidden) * self.scale
        return z if self.softcap is None else torch.tanh(z / self.softcap) * self.softcap


def head_of(model: nn.Module) -> Head | ForeignHead:
    """Return the output head of a transformers model; raises HeadError if it has none."""
    layer = model.get_output_embeddings()  # type: ignore[operator]
    if not isinstance(layer, nn.Module):
        raise HeadError(
            f"{type(model).__name__}: expected a causal language model with an output head, "
            f"get_output_embeddings() gave {type(layer).__name__}"
        )
    config: Any = model.config
    scale = float(getattr(config, "logit_scale", None) or 1.0)
    scale *= float(getattr(config, "lm_head_multiplier", None) or 1.0)
    scale /= float(getattr(config, "logits_scaling", None) or 1.0)
    softcap = getattr(config, "final_logit_softcapping", None)
    softcap = float(softcap) if softcap else None
    if type(layer) is nn.Linear and layer.weight.is_floating_point():
        return Head(layer.weight.detach(), layer.bias, scale, softcap)
    return ForeignHead(layer, int(config.vocab_size), scale, softcap)
