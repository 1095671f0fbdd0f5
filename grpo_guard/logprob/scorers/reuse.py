"""Reuse the forward pass of a trainer that runs the policy over the completions anyway, because
samples may come from older weights (several iterations per batch, or a separate engine)."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.replay.margins import Replay
from grpo_guard.logprob.scorers.forward import body_of, computed_low, disagreement
from grpo_guard.logprob.scorers.memory import MemoryPlan, ran_out_of_memory
from grpo_guard.logprob.scorers.transformers import Asked, TransformersScorer
from grpo_guard.logprob.stats import TokenStats

logger = logging.getLogger("grpo_guard")

Key = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(slots=True)
class _Batch:
    states: dict[Key, Tensor]  # states that predict the tokens, keyed by prompt and completion
    version: int  # version of the weights
    low_precision: bool  # whether the states carry low-precision rounding, whatever their dtype
    checked: bool = False  # whether they were compared with the scorer's own forward pass


class ForwardReuse:
    """A scorer that reuses a trainer's hidden states where it can and computes the rest itself.

    Captured states are valid only for the weights they were computed with. Weight changes tracked
    by torch invalidate the states; updates through ``parameter.data`` are not tracked, so code that
    captures states must call `forget` before the weights might change. On first use, the most
    heavily padded row of every captured batch is compared with a forward pass by this scorer:
    trainers pad and mask in their own ways, and padding that shifts positions only shows in a
    padded batch. If the states differ, nothing is reused from then on.
    """

    replays = True

    def __init__(self, model: Any, *, memory_budget: int | None = None) -> None:
        self._score_by(TransformersScorer(model, memory_budget=memory_budget))

    @classmethod
    def over(cls, scorer: TransformersScorer) -> Self:
        """Build a scorer whose own forward passes run through ``scorer``."""
        reuse = cls.__new__(cls)
        reuse._score_by(scorer)
        return reuse

    def _score_by(self, scorer: TransformersScorer) -> None:
        self.own = scorer
        self.model, self.vocab_size, self.window = scorer.model, scorer.vocab_size, scorer.window
        self.enabled = True
        self._batch: _Batch | None = None

    def identity(self) -> dict[str, str]:
        return self.own.identity()

    @contextmanager
    def capture(
        self, input_ids: Tensor, attention_mask: Tensor, completion_length: int
    ) -> Iterator[None]:
        """Keep the hidden states from the forward passes inside, which together cover the ids:
        left-padded prompts, then right-padded completions of length C, [B, P + C]."""
        self.forget()
        # If frequencies depend on the batch length, an honest completion's states depend on the
        # longest completion in its batch, so nothing is captured.
        by_length = self.own.unscaled_length is not None
        if not self.enabled or by_length or _drops_out(self.own.model):
            yield
            return
        parts: list[Tensor] = []
        low: list[bool] = []

        def keep(module: nn.Module, arguments: Any, output: Any) -> None:
            states = getattr(output, "last_hidden_state", None)
            if states is not None and states.shape[1] == input_ids.shape[1]:
                parts.append(states.detach()[:, -completion_length - 1 : -1].clone())
                low.append(computed_low(states.dtype, states.device))

        handle = body_of(self.own.model).register_forward_hook(keep)
        try:
            yield
        finally:
            handle.remove()
        if sum(map(len, parts)) == len(input_ids):
            filed = _filed(input_ids, attention_mask, completion_length, torch.cat(parts))
            self._batch = _Batch(filed, self._weights_version(), any(low))

    def forget(self) -> None:
        """Drop the captured states."""
        self._batch = None

    def score(
        self,
        sequences: Sequence[Encoded],
        spec: SamplingSpec,
        *,
        mass_margin: float = 0.0,
        replay: Replay | None = None,
    ) -> list[TokenStats]:
        """Like `TransformersScorer.score`, but use captured states wherever the token ids match."""
        keys = [(s.prompt_ids, s.completion_ids) for s in sequences]
        states = self._usable(keys)
        reused = [i for i, key in enumerate(keys) if key in states]
        results: dict[int, TokenStats] = {}
        if reused:
            chosen = [sequences[i] for i in reused]
            hidden = torch.cat([states[keys[i]] for i in reused])
            rows = MemoryPlan.of(self.own.model, self.own.memory_budget).head_rows
            with torch.no_grad():
                stats = self.own.stats_of(hidden, chosen, Asked(spec, mass_margin, replay), rows)
            results.update(zip(reused, stats, strict=True))
        rest = [i for i in range(len(sequences)) if i not in results]
        if rest:
            stats = self.own.score(
                [sequences[i] for i in rest], spec, mass_margin=mass_margin, replay=replay
            )
            results.update(zip(rest, stats, strict=True))
        return [results[i] for i in range(len(sequences))]

    def _usable(self, keys: Sequence[Key]) -> dict[Key, Tensor]:
        """Return the captured states if they cover any of the given keys and are still valid."""
        batch = self._batch  # another thread may call `forget` in the meantime
        if not self.enabled or batch is None or not any(key in batch.states for key in keys):
            return {}
        if batch.version != self._weights_version():
            return {}
        if not batch.checked and not self._agrees(batch):
            self.forget()
            return {}
        batch.checked = True
        return batch.states

    def _agrees(self, batch: _Batch) -> bool:
        """Compare the most heavily padded row: the shortest prompt, with its longest completion.

        On use rather than on capture, to notice changes to the model in between too (adapters
        turned off for a reference pass, untracked weight changes).
        """
        key = min(batch.states, key=lambda key: (len(key[0]), -len(key[1])))
        try:
            expected = self.own.plain_states(Encoded(*key, False))
        except Exception as error:
            if not ran_out_of_memory(error):
                raise
            return False  # `score` then halves the work and reports whatever does not fit
        low = batch.low_precision or computed_low(expected.dtype, expected.device)
        difference = disagreement(batch.states[key], expected, low_precision=low)
        if difference:
            self.enabled = False
            logger.warning(
                "%s: the trainer's hidden states differ %s from this scorer's; completions are "
                "scored by a separate forward pass",
                type(self.own.model).__name__,
                difference,
            )
        return not difference

    def _weights_version(self) -> int:
        """Count in-place changes, such as an optimizer's, but not those made through ``.data``."""
        return sum(int(p._version) for p in self.own.model.parameters())


def _filed(
    input_ids: Tensor, attention_mask: Tensor, completion_length: int, states: Tensor
) -> dict[Key, Tensor]:
    """Index the states by unpadded prompt and completion, [B, C, H] -> [n, H] each."""
    filed: dict[Key, Tensor] = {}
    boundary = input_ids.shape[1] - completion_length
    for row, mask, own in zip(input_ids, attention_mask.bool(), states, strict=True):
        prompt = tuple(row[:boundary][mask[:boundary]].tolist())
        completion = tuple(row[boundary:][mask[boundary:]].tolist())
        # If the mask had a hole, the states after it would be matched to the wrong tokens.
        whole = bool(mask[boundary - len(prompt) : boundary + len(completion)].all())
        if prompt and completion and whole:
            filed[prompt, completion] = own[: len(completion)]
    return filed


def _drops_out(model: nn.Module) -> bool:
    """Whether dropout makes passes in the current mode random, which would look like drift.

    Attention modules have no dropout submodule: they store the rate as a number.
    """
    for module in model.modules():
        if not module.training:
            continue
        rates = [v for name, v in vars(module).items() if "dropout" in name]
        if isinstance(module, nn.modules.dropout._DropoutNd):
            rates.append(module.p)
        if any(isinstance(rate, int | float) and rate > 0 for rate in rates):
            return True
    return False
