"""A trainer's own forward pass instead of a second one.

GRPO trainers run the policy over the completions anyway where samples may come from older weights
(several iterations per batch, or a separate engine). The body's hidden states, or the logits, of
that pass are all that the statistics need.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.kernels.head_stats import logit_stats
from grpo_guard.logprob.kernels.penalty import RepetitionPenalty
from grpo_guard.logprob.scorers.forward import body_of, row_states
from grpo_guard.logprob.scorers.memory import MemoryPlan
from grpo_guard.logprob.scorers.shared_prompt import LOW_PRECISION_TOLERANCE
from grpo_guard.logprob.scorers.transformers import TransformersScorer, split
from grpo_guard.logprob.stats import TokenStats
from grpo_guard.sampling import SamplingSpec

logger = logging.getLogger("grpo_guard")

Key = tuple[tuple[int, ...], tuple[int, ...]]


def stats_from_logits(
    logits: Tensor,
    sequence: Encoded,
    spec: SamplingSpec,
    *,
    mass_margin: float = 0.0,
    eos_ids: Sequence[int] = (),
) -> TokenStats:
    """Statistics of one completion from logits that exist already.

    Args:
        logits: Raw logits that predict the completion's n tokens, before temperature and
            penalties, any float dtype, shape [n, V]. In bf16 they carry up to 0.125 of rounding.
        sequence: Prompt and completion as ids.
        spec: The declared sampler.
        mass_margin: Widening of top-p at which ``edge_gap`` is taken.
        eos_ids: Tokens that end a completion.

    Raises:
        ValueError: the shapes do not fit.
    """
    ids = sequence.completion_ids
    if logits.ndim != 2 or len(logits) != len(ids):
        raise ValueError(f"logits: expected shape [{len(ids)}, V], got {tuple(logits.shape)}")
    targets = torch.tensor(ids, device=logits.device)
    penalty = None
    if spec.repetition_penalty != 1.0:
        pairs = [(sequence.prompt_ids, ids)]
        penalty = RepetitionPenalty.of(
            spec.repetition_penalty, pairs, logits.shape[-1], logits.device
        )
    with torch.no_grad():
        stats, gaps = logit_stats(
            logits, targets, spec, penalty=penalty, mass_margin=mass_margin, eos_ids=eos_ids
        )
    return split(stats, gaps, [len(ids)])[0]


class ForwardReuse:
    """A scorer that takes a trainer's hidden states where there are any, and runs the rest itself.

    What was captured counts only for the weights it was computed with: an optimizer's step makes it
    void. The first captured batch is compared with a forward pass of this scorer's own, because a
    trainer pads and masks in its own way; where they differ nothing is reused.

    Args:
        model: The policy that the trainer trains.
        memory_budget: As for `TransformersScorer`.
        shared_prompts: As for `TransformersScorer`.
    """

    def __init__(
        self, model: Any, *, memory_budget: int | None = None, shared_prompts: bool = True
    ) -> None:
        self.own = TransformersScorer(
            model, memory_budget=memory_budget, shared_prompts=shared_prompts
        )
        self.enabled = True
        self._captured: dict[Key, Tensor] = {}
        self._version = -1
        self._checked = False

    @property
    def vocab_size(self) -> int:
        return self.own.vocab_size

    @property
    def window(self) -> int | None:
        return self.own.window

    def identity(self) -> dict[str, str]:
        return self.own.identity()

    @contextmanager
    def capture(
        self, input_ids: Tensor, attention_mask: Tensor, completion_length: int
    ) -> Iterator[None]:
        """Keep the hidden states of the forward passes inside, which together see ``input_ids``.

        Args:
            input_ids: Prompts padded at the left, completions at the right, shape [B, P + C].
            attention_mask: 0 on padding, shape [B, P + C].
            completion_length: C.
        """
        self._captured.clear()
        # Frequencies chosen by the batch's length would make an honest completion's states depend
        # on the longest one beside it.
        by_length = self.own.unscaled_length is not None
        if not self.enabled or by_length or _drops_out(self.own.model):
            yield
            return
        parts: list[Tensor] = []

        def keep(module: nn.Module, arguments: Any, output: Any) -> None:
            states = output.last_hidden_state
            if states.shape[1] == input_ids.shape[1]:
                parts.append(states.detach()[:, -completion_length - 1 : -1].clone())

        handle = body_of(self.own.model).register_forward_hook(keep)
        try:
            yield
        finally:
            handle.remove()
        if sum(map(len, parts)) == len(input_ids):
            self._version = self._weights_version()
            self._file(input_ids, attention_mask, completion_length, torch.cat(parts))

    def score(
        self, sequences: Sequence[Encoded], spec: SamplingSpec, *, mass_margin: float = 0.0
    ) -> list[TokenStats]:
        """As `TransformersScorer.score`; captured states are used where they are of these ids."""
        current = self._version == self._weights_version()
        keys = [(s.prompt_ids, s.completion_ids) for s in sequences]
        reused = [i for i, key in enumerate(keys) if current and key in self._captured]
        results: dict[int, TokenStats] = {}
        if reused:
            chosen = [sequences[i] for i in reused]
            hidden = torch.cat([self._captured[keys[i]] for i in reused])
            rows = MemoryPlan.of(self.own.model, self.own.memory_budget).head_rows
            with torch.no_grad():
                stats = self.own.stats_of(hidden, chosen, spec, mass_margin, rows)
            results.update(zip(reused, stats, strict=True))
        rest = [i for i in range(len(sequences)) if i not in results]
        if rest:
            stats = self.own.score([sequences[i] for i in rest], spec, mass_margin=mass_margin)
            results.update(zip(rest, stats, strict=True))
        return [results[i] for i in range(len(sequences))]

    def _file(
        self, input_ids: Tensor, attention_mask: Tensor, completion_length: int, states: Tensor
    ) -> None:
        boundary = input_ids.shape[1] - completion_length
        for row, mask, own in zip(input_ids, attention_mask.bool(), states, strict=True):
            prompt = tuple(row[:boundary][mask[:boundary]].tolist())
            completion = tuple(row[boundary:][mask[boundary:]].tolist())
            if prompt and completion:
                self._captured[prompt, completion] = own[: len(completion)]
        if self._captured and not self._checked:
            self._check()

    def _check(self) -> None:
        """Compare the row with the shortest prompt, which was padded most."""
        prompt_ids, completion_ids = min(self._captured, key=lambda key: len(key[0]))
        sequence = Encoded(prompt_ids, completion_ids, False)
        with torch.no_grad():
            expected = row_states(body_of(self.own.model), [sequence], self.own.device).float()
        got = self._captured[prompt_ids, completion_ids].float()
        scale = expected.norm(dim=-1).clamp_min(1e-6)
        difference = float(((got - expected).norm(dim=-1) / scale).mean())
        self._checked = True
        if not difference <= LOW_PRECISION_TOLERANCE:
            self.enabled = False
            self._captured.clear()
            logger.warning(
                "%s: the trainer's hidden states differ by %.2g from this scorer's; completions "
                "are scored by a forward pass of their own",
                type(self.own.model).__name__,
                difference,
            )

    def _weights_version(self) -> int:
        """Counts in-place changes: optimizers update parameters in place."""
        return sum(int(p._version) for p in self.own.model.parameters())


def _drops_out(model: nn.Module) -> bool:
    """Whether a pass in the present mode is random: it would look like drift."""
    return any(
        isinstance(m, nn.modules.dropout._DropoutNd) and m.training and m.p > 0
        for m in model.modules()
    )
