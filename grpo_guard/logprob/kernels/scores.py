"""Scores for N rows, z = penalised logits / temperature, one vocabulary tile at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from grpo_guard.logprob.kernels.product import product


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


NEVER = torch.iinfo(torch.int32).max


@dataclass(frozen=True, slots=True)
class RepetitionPenalty:
    """Divides positive logits of seen tokens by the penalty and multiplies negative ones by it.

    Matches transformers' RepetitionPenaltyLogitsProcessor and vLLM's penalties, both of which count
    prompt and completion. The penalty is per prefix: row t sees the prompt and tokens [0, t).
    """

    penalty: float  # > 0
    first_seen: Tensor
    """Position of a token's first occurrence in the completion, -1 for tokens in the prompt, and
    `NEVER` for all others; int32, shape [C, V]."""
    sequence: Tensor  # index, out of C, of the completion a row belongs to, [N]
    position: Tensor  # index in that completion of the token predicted by the row, [N]

    @classmethod
    def of(
        cls,
        penalty: float,
        sequences: Sequence[tuple[Sequence[int], Sequence[int]]],
        vocab_size: int,
        device: torch.device,
    ) -> RepetitionPenalty | None:
        """Build the penalty for the concatenated rows of (prompt_ids, completion_ids) pairs; None
        if ``penalty`` is 1."""
        if penalty == 1.0:
            return None
        first_seen = torch.full((len(sequences), vocab_size), NEVER, dtype=torch.int32)
        for i, (prompt_ids, completion_ids) in enumerate(sequences):
            positions = {token: t for t, token in reversed(list(enumerate(completion_ids)))}
            positions |= dict.fromkeys(prompt_ids, -1)
            tokens = torch.tensor(list(positions), dtype=torch.long)
            first_seen[i, tokens] = torch.tensor(list(positions.values()), dtype=torch.int32)
        lengths = [len(completion_ids) for _, completion_ids in sequences]
        return cls(
            penalty,
            first_seen.to(device),
            torch.repeat_interleave(torch.arange(len(sequences)), torch.tensor(lengths)).to(device),
            torch.cat([torch.arange(n) for n in lengths]).to(device),
        )

    def rows(self, index: Tensor | slice) -> RepetitionPenalty:
        """Return the same penalty for a selection of the rows."""
        return RepetitionPenalty(
            self.penalty, self.first_seen, self.sequence[index], self.position[index]
        )

    def apply(self, z: Tensor, start: int, stop: int) -> Tensor:
        """Penalise the raw logits of tokens [start, stop), shape [N, stop - start]."""
        seen = self.first_seen[:, start:stop][self.sequence] < self.position[:, None]
        return torch.where(seen, penalised(z, self.penalty), z)

    def apply_to_targets(self, z: Tensor, targets: Tensor) -> Tensor:
        """Penalise the raw logit of one token per row, shape [N]."""
        seen = self.first_seen[self.sequence, targets] < self.position
        return torch.where(seen, penalised(z, self.penalty), z)


def penalised(z: Tensor, penalty: float) -> Tensor:
    """Return the raw logits of tokens that were seen, with the penalty."""
    return torch.where(z > 0, z / penalty, z * penalty)


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
