"""Adam on a full-precision copy of the weights, for policies in half precision.

A step of 2e-5 on a weight of 0.02 is a tenth of a percent, but bfloat16 resolves only four tenths,
so most updates would be rounded away.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter


class MasterAdam(torch.optim.Adam):
    """Adam that updates float32 copies of the weights and writes them back."""

    def __init__(self, parameters: Iterable[Parameter], **options: Any) -> None:
        self._live = list(parameters)
        self._masters = [Parameter(p.detach().float().clone()) for p in self._live]
        super().__init__(self._masters, **options)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Also clear the gradients of the live weights."""
        for live in self._live:
            live.grad = None
        super().zero_grad(set_to_none)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update once from the gradients of the model's own weights."""
        for master, live in zip(self._masters, self._live, strict=True):
            master.grad = None if live.grad is None else live.grad.float()
        super().step()
        for master, live in zip(self._masters, self._live, strict=True):
            live.copy_(master)
            master.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Return Adam's state and the copies, because the model holds only their leading digits."""
        masters: list[Tensor] = [master.detach() for master in self._masters]
        return {**super().state_dict(), "masters": masters}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the copies together with Adam's own state."""
        state = dict(state_dict)
        with torch.no_grad():
            for master, kept in zip(self._masters, state.pop("masters"), strict=True):
                master.copy_(kept)
        super().load_state_dict(state)


def adam(parameters: Iterable[Parameter], **options: Any) -> torch.optim.Adam:
    """Create an Adam optimiser, on float32 copies if the weights have another dtype."""
    own = list(parameters)
    if all(parameter.dtype == torch.float32 for parameter in own):
        return torch.optim.Adam(own, **options)
    return MasterAdam(own, **options)
