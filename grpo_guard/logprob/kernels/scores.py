"""Scores for N rows, z = penalised logits / temperature, one vocabulary tile at a time."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

from grpo_guard.logprob.kernels.head import ForeignHead, Head
from grpo_guard.logprob.kernels.penalty import RepetitionPenalty
from grpo_guard.logprob.kernels.product import product


class HeadScores:
    """Scores from final hidden states, [N, H], and the output head, without ever storing the [N, V]
    logits. The states are multiplied by 1/T, which takes N * H multiplications, not N * V."""

    def __init__(
        self,
        hidden: Tensor,
        head: Head,
        temperature: float,
        penalty: RepetitionPenalty | None = None,
    ) -> None:
        self.head = head
        self.temperature = temperature
        self.penalty = penalty
        self.hidden = hidden
        self._scaled = hidden.float() * (head.scale / temperature)
        self._upcast: Tensor | None = None

    @property
    def vocab_size(self) -> int:
        return self.head.vocab_size

    def tile(self, start: int, stop: int, out: Tensor) -> Tensor:
        """Return the scores of tokens [start, stop), fp32, shape [N, stop - start], possibly
        written into the buffer ``out``."""
        z = product(self._scaled, self._weight(start, stop), out=out)
        z = self._transformed(z, self._bias(slice(start, stop)))
        return z if self.penalty is None else self.penalty.apply(z, start, stop)

    def of(self, tokens: Tensor) -> Tensor:
        """Return the score of one token per row, fp32: [N] -> [N]."""
        z = torch.cat(
            [
                (h * self.head.weight[y].float()).sum(-1)
                for h, y in zip(
                    torch.split(self._scaled, 512), torch.split(tokens, 512), strict=True
                )
            ]
        )
        z = self._transformed(z, self._bias(tokens))
        return z if self.penalty is None else self.penalty.apply_to_targets(z, tokens)

    def rows(self, index: Tensor) -> HeadScores:
        """Return the same scores for a selection of the rows."""
        penalty = self.penalty.rows(index) if self.penalty else None
        return HeadScores(self.hidden[index], self.head, self.temperature, penalty)

    def _weight(self, start: int, stop: int) -> Tensor:
        """Return a tile of the weight in fp32. A bf16 product would round logits by up to 0.125 and
        is emulated on most CPUs; upcasting a tile is cheap and exact."""
        tile = self.head.weight[start:stop]
        if tile.dtype == torch.float32:
            return tile
        if self._upcast is None or self._upcast.shape[0] < stop - start:
            self._upcast = torch.empty(tile.shape, dtype=torch.float32, device=tile.device)
        return self._upcast[: stop - start].copy_(tile)

    def _bias(self, index: slice | Tensor) -> Tensor | None:
        return None if self.head.bias is None else self.head.bias[index].float()

    def _transformed(self, z: Tensor, bias: Tensor | None) -> Tensor:
        """Apply the bias and soft-cap in place to scores already multiplied by scale / T."""
        if bias is not None:
            z += bias * (self.head.scale / self.temperature)
        if self.head.softcap is not None:
            cap = self.head.softcap / self.temperature
            z.div_(cap).tanh_().mul_(cap)
        return z


class LogitScores:
    """Like `HeadScores`, but from raw logits, [N, V]: the trainer's, or those of a `ForeignHead`.
    In bf16 they are off by up to 0.125, which the drift profile must allow for."""

    def __init__(
        self, logits: Tensor, temperature: float, penalty: RepetitionPenalty | None = None
    ) -> None:
        self.logits = logits
        self.temperature = temperature
        self.penalty = penalty

    @property
    def vocab_size(self) -> int:
        return self.logits.shape[-1]

    def tile(self, start: int, stop: int, out: Tensor) -> Tensor:
        z = torch.div(self.logits[:, start:stop].float(), self.temperature, out=out)
        return z if self.penalty is None else self.penalty.apply(z, start, stop)

    def of(self, tokens: Tensor) -> Tensor:
        z = self.logits.gather(-1, tokens[:, None])[:, 0].float() / self.temperature
        return z if self.penalty is None else self.penalty.apply_to_targets(z, tokens)

    def rows(self, index: Tensor) -> LogitScores:
        penalty = self.penalty.rows(index) if self.penalty else None
        return LogitScores(self.logits[index], self.temperature, penalty)


Scores: TypeAlias = HeadScores | LogitScores


def scores_of(
    hidden: Tensor, head: Head | ForeignHead, temperature: float, penalty: RepetitionPenalty | None
) -> Scores:
    """Build the scores for hidden states, [N, H], under any head; the penalty covers these rows."""
    if isinstance(head, ForeignHead):
        return LogitScores(head.logits(hidden), temperature, penalty)
    return HeadScores(hidden, head, temperature, penalty)
