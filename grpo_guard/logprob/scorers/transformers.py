"""Scores completions with a transformers model: one forward of the body, the head by tiles."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.kernels.head import ForeignHead, HeadError, head_of
from grpo_guard.logprob.kernels.head_stats import head_stats
from grpo_guard.logprob.kernels.penalty import RepetitionPenalty
from grpo_guard.logprob.kernels.rows import RowStats
from grpo_guard.logprob.kernels.scores import HeadScores
from grpo_guard.logprob.kernels.support import whole_rows
from grpo_guard.logprob.stats import TokenStats
from grpo_guard.sampling import SamplingSpec

# Largest relative disagreement between the tiled head and the model's own logits.
HEAD_TOLERANCE = 2e-2


class TransformersScorer:
    """Per-token statistics under a causal language model.

    The model is used as it is at the moment of the call: give it the very object that is being
    trained and every round is verified with that round's weights. It is put into eval mode for the
    time of the call (dropout would look like drift) and back.

    Args:
        model: A transformers causal language model with a plain linear output head.
        batch_tokens: Padded tokens per forward pass; bounds memory.

    Raises:
        HeadError: the output head cannot be applied tile by tile.
    """

    def __init__(self, model: Any, *, batch_tokens: int = 16_384) -> None:
        if batch_tokens < 1:
            raise ValueError(f"batch_tokens: expected an integer >= 1, got {batch_tokens!r}")
        # A PEFT model injects its adapters into the base model, which scores like any other.
        self.model: Any = model.get_base_model() if hasattr(model, "get_base_model") else model
        self.batch_tokens = batch_tokens
        self._lock = threading.Lock()  # eval mode is a property of the shared model
        head_of(self.model)
        self._head_checked = False

    @property
    def vocab_size(self) -> int:
        return head_of(self.model).vocab_size

    @property
    def window(self) -> int | None:
        """Longest sequence in tokens, from the model's config."""
        length = getattr(self.model.config, "max_position_embeddings", None)
        return int(length) if length else None

    def score(
        self, sequences: Sequence[Encoded], spec: SamplingSpec, *, mass_margin: float = 0.0
    ) -> list[TokenStats]:
        """Statistics of each completion's tokens, in the order of ``sequences``."""
        results: dict[int, TokenStats] = {}
        with self._lock, _eval_mode(self.model), torch.no_grad():
            if not self._head_checked:
                self._check_head()
            for batch in self._batches(sequences):
                chosen = [sequences[i] for i in batch]
                results.update(zip(batch, self._score(chosen, spec, mass_margin), strict=True))
        return [results[i] for i in range(len(sequences))]

    def _batches(self, sequences: Sequence[Encoded]) -> Iterator[list[int]]:
        """Indices of sequences of similar length, within the budget of padded tokens."""
        lengths = [len(s.prompt_ids) + len(s.completion_ids) for s in sequences]
        batch: list[int] = []
        for i in sorted(range(len(sequences)), key=lambda i: -lengths[i]):
            if batch and (len(batch) + 1) * lengths[batch[0]] > self.batch_tokens:
                yield batch
                batch = []
            batch.append(i)
        if batch:
            yield batch

    def _score(
        self, sequences: Sequence[Encoded], spec: SamplingSpec, mass_margin: float
    ) -> list[TokenStats]:
        head, device = head_of(self.model), self._device
        hidden = self._hidden(sequences, device)
        pairs = [(s.prompt_ids, s.completion_ids) for s in sequences]
        targets = torch.tensor([t for _, ids in pairs for t in ids], device=device)
        penalty = None
        if spec.repetition_penalty != 1.0:
            penalty = RepetitionPenalty.of(spec.repetition_penalty, pairs, head.vocab_size, device)
        stats, gaps = head_stats(
            hidden,
            head,
            targets,
            spec,
            penalty=penalty,
            mass_margin=mass_margin,
            eos_ids=spec.eos_token_ids,
        )
        return split(stats, gaps, [len(ids) for _, ids in pairs])

    def _hidden(self, sequences: Sequence[Encoded], device: torch.device) -> Tensor:
        """Hidden states that predict the completions' tokens, one after the other, [N, H]."""
        rows = [s.prompt_ids + s.completion_ids[:-1] for s in sequences]
        # Padding stands at the right, where causal attention never looks back at it; without a
        # mask, attention takes its fast causal path.
        ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
        states = self._body()(input_ids=ids.to(device), use_cache=False).last_hidden_state
        return torch.cat(
            [states[i, len(s.prompt_ids) - 1 : len(rows[i])] for i, s in enumerate(sequences)]
        )

    def _body(self) -> Any:
        body = getattr(self.model, self.model.base_model_prefix, None)
        if body is None:
            raise HeadError(f"{type(self.model).__name__}: expected a body below the output head")
        return body

    @property
    def _device(self) -> torch.device:
        device: torch.device = self.model.get_input_embeddings().weight.device
        return device

    def _check_head(self) -> None:
        """The head by tiles must give the model's own logits: unknown transforms are refused."""
        head = head_of(self.model)
        ids = torch.arange(min(4, head.vocab_size), device=self._device)[None]
        # Trainers put mixed precision around `forward` of this very object; the class's own one is
        # what the body below it is compared with.
        forward = type(self.model).forward
        expected = forward(self.model, input_ids=ids, use_cache=False).logits[0].float()
        states = self._body()(input_ids=ids, use_cache=False).last_hidden_state[0]
        rows = torch.arange(len(states), device=self._device)
        if isinstance(head, ForeignHead):
            own = head.logits(states).float()
        else:
            own = whole_rows(HeadScores(states, head, 1.0), rows)
        error = (own - expected).abs().max().item()
        scale = expected.abs().max().item()
        if error > HEAD_TOLERANCE * max(1.0, scale):
            raise HeadError(
                f"{type(self.model).__name__}: its logits are not those of its output head "
                f"(largest difference {error:.3g} at scale {scale:.3g}); this architecture "
                "transforms them in a way that is not supported"
            )
        self._head_checked = True


def split(stats: RowStats, gaps: Tensor, lengths: Sequence[int]) -> list[TokenStats]:
    """Rows of all sequences -> one TokenStats per sequence."""
    columns = {**stats._asdict(), "edge_gap": gaps}
    arrays = {
        name: (column.double() if column.is_floating_point() else column).cpu().numpy()
        for name, column in columns.items()
    }
    ends = torch.tensor(lengths).cumsum(0).tolist()
    return [
        TokenStats(**{name: array[end - n : end] for name, array in arrays.items()})
        for end, n in zip(ends, lengths, strict=True)
    ]


@contextmanager
def _eval_mode(model: nn.Module) -> Iterator[None]:
    """Eval mode for the time of a call, restored module by module."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
