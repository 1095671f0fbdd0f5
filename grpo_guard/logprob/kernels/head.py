"""The output head of a causal language model, as tiles of the vocabulary."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


class HeadError(ValueError):
    """The model's output head is not one that can be applied tile by tile."""


@dataclass(frozen=True, slots=True)
class Head:
    """Logits = scale * (hidden @ weight.T + bias), then soft-capped.

    Args:
        weight: Shape [V, H], any float dtype; upcast tile by tile, because a bf16 product would
            round logits by up to 0.125 and native bf16 matrix products are slow on CPUs.
        bias: Shape [V] or None.
        scale: Factor on the logits (Cohere's ``logit_scale``, 1 / Granite's ``logits_scaling``).
        softcap: Gemma's ``final_logit_softcapping``: c * tanh(logits / c); None = off.
    """

    weight: Tensor
    bias: Tensor | None = None
    scale: float = 1.0
    softcap: float | None = None

    @classmethod
    def of(cls, model: nn.Module) -> Head:
        """Read the head of a transformers model.

        Raises:
            HeadError: there is none, or it is not a plain linear layer.
        """
        layer = model.get_output_embeddings()  # type: ignore[operator]
        if type(layer) is not nn.Linear:
            raise HeadError(
                f"output head: expected a plain torch.nn.Linear, got {type(layer).__name__}; "
                "quantised and adapted heads cannot be read by tiles"
            )
        config = model.config
        scale = float(getattr(config, "logit_scale", None) or 1.0)
        scale /= float(getattr(config, "logits_scaling", None) or 1.0)
        softcap = getattr(config, "final_logit_softcapping", None)
        return cls(layer.weight.detach(), layer.bias, scale, float(softcap) if softcap else None)

    @property
    def vocab_size(self) -> int:
        return self.weight.shape[0]

    def logits(self, hidden: Tensor, start: int, stop: int) -> Tensor:
        """Raw logits of tokens [start, stop) in fp32: [N, H] -> [N, stop - start]."""
        z = hidden @ self.weight[start:stop].float().T
        if self.bias is not None:
            z += self.bias[start:stop].float()
        return self._transformed(z)

    def target_logits(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Raw logit of one token per row in fp32: [N, H], [N] -> [N]."""
        z = torch.cat(
            [
                (h * self.weight[y].float()).sum(-1)
                for h, y in zip(torch.split(hidden, 512), torch.split(targets, 512), strict=True)
            ]
        )
        if self.bias is not None:
            z += self.bias[targets].float()
        return self._transformed(z)

    def _transformed(self, z: Tensor) -> Tensor:
        if self.scale != 1.0:
            z = z * self.scale
        if self.softcap is not None:
            z = torch.tanh(z / self.softcap) * self.softcap
        return z
