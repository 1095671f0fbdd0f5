"""The repetition penalty, applied per row to the tokens already seen by the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

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
    """Return raw logits as they are for a token that was seen."""
    return torch.where(z > 0, z / penalty, z * penalty)
