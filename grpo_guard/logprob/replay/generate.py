"""Sampling under a public coin with transformers, for honest nodes with or without a loop of their
own."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor

from grpo_guard.core.given import Span
from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.logprob.kernels.scores import penalised
from grpo_guard.logprob.noise import Family, noise_position, require_replayable, signed
from grpo_guard.logprob.replay.draw import draw
from grpo_guard.logprob.scorers.forward import eval_mode, left_padded


class CoinSampling:
    """A logits processor for ``model.generate(logits_processor=[CoinSampling(...)])``.

    The processor is the entire sampler: it draws the token itself and masks all others, so that
    ``generate`` cannot change it. Temperature, filters and penalty come from ``spec`` and must be
    off in the generation config (`generate_under_coin` turns them off). Each instance serves a
    single ``generate`` call without beams.

    Args:
        spec, family: The declared sampler and its family of noise.
        seeds: One seed per row, from `PublicCoin.seed`.
        prompt_ids: Each row's prompt without padding, needed for the penalty and vLLM's positions.
        start: Number of completion tokens at the end of each row's input; None for none yet.

    Raises:
        ValueError: the numbers of seeds and prompts differ; also the errors of
            `require_replayable`.
    """

    def __init__(
        self,
        spec: SamplingSpec,
        seeds: Sequence[int],
        prompt_ids: Sequence[Sequence[int]],
        *,
        start: Sequence[int] | None = None,
        family: Family = "grpo-guard",
    ) -> None:
        if len(seeds) != len(prompt_ids):
            raise ValueError(f"seeds: expected {len(prompt_ids)}, got {len(seeds)}")
        require_replayable(spec, family)
        self.spec = spec
        self.family: Family = family
        self.seeds = torch.tensor([signed(seed) for seed in seeds], dtype=torch.int64)
        self.prompt_ids = prompt_ids
        self.start = torch.tensor(start if start is not None else [0] * len(seeds))
        self._width: int | None = None
        self._seen: Tensor | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return scores that are -inf for every token but the one drawn: [B, L], [B, V] -> [B, V].
        Raises ValueError if there are more rows than seeds (beams, or several sequences a prompt).
        """
        if len(scores) != len(self.seeds):
            raise ValueError(
                f"CoinSampling: expected {len(self.seeds)} rows, got {len(scores)}; repeat prompts "
                "and seeds instead of num_return_sequences, and use no beams"
            )
        if self._width is None:
            self._width = input_ids.shape[1]
            self.seeds, self.start = self.seeds.to(scores.device), self.start.to(scores.device)
            self._lengths = torch.tensor([len(p) for p in self.prompt_ids], device=scores.device)
        t = self.start + (input_ids.shape[1] - self._width)
        z = self._penalised(input_ids, scores.float()) / self.spec.temperature
        positions = noise_position(self.family, self._lengths, t)
        drawn = draw(z, self.seeds, positions, self.spec, self.family)
        return torch.full_like(scores, -torch.inf).scatter_(1, drawn[:, None], 0.0)

    def _penalised(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Apply the repetition penalty over prompt and completion, but not to padding."""
        penalty = self.spec.repetition_penalty
        if penalty == 1.0:
            return scores
        if self._seen is None:
            self._seen = torch.zeros_like(scores, dtype=torch.bool)
            for row, (prompt, started) in enumerate(
                zip(self.prompt_ids, self.start.tolist(), strict=True)
            ):
                self._seen[row, input_ids[row, input_ids.shape[1] - len(prompt) - started :]] = True
        else:
            self._seen.scatter_(1, input_ids[:, -1:], True)
        return torch.where(self._seen, penalised(scores, penalty), scores)


def generate_under_coin(
    model: Any,
    prompt_ids: Sequence[Sequence[int]],
    seeds: Sequence[int],
    spec: SamplingSpec,
    *,
    eos_ids: Sequence[int],
    prefixes: Sequence[Sequence[int]] | None = None,
    family: Family = "grpo-guard",
) -> list[tuple[int, ...]]:
    """Generate the only honest completion of each (prompt, seed) pair, all in one batch.

    Args:
        model: A transformers causal language model; in eval mode during the call.
        prompt_ids: Prompts as token ids, none of them empty.
        seeds: One seed per prompt; for a group, repeat the prompt.
        spec, family: The declared sampler, with ``max_new_tokens``, and its family of noise.
        eos_ids: Ids of the tokens that end a completion, at least one.
        prefixes: Tokens that each completion starts with, e.g. to continue an interrupted
            completion, or after a tool result. A prefix that ends with an EOS is not continued.

    Returns:
        Completions as token ids, including the EOS if there is one.

    Raises:
        ValueError: the numbers of prompts, seeds and prefixes differ, ``max_new_tokens`` is not
            declared, or there is no EOS; also the errors of `require_replayable`.
    """
    if spec.max_new_tokens is None:
        raise ValueError("spec.max_new_tokens: expected an integer, got None")
    if not eos_ids:
        raise ValueError("eos_ids: expected at least one id, got none")
    prefixes = prefixes if prefixes is not None else [()] * len(prompt_ids)
    inputs = [(*p, *c) for p, c in zip(prompt_ids, prefixes, strict=True)]
    device = model.get_input_embeddings().weight.device
    ids, mask = left_padded(inputs, eos_ids[0], device)
    start = [len(prefix) for prefix in prefixes]
    sampler = CoinSampling(spec, seeds, prompt_ids, start=start, family=family)
    new_tokens = spec.max_new_tokens - min(start, default=spec.max_new_tokens)
    if new_tokens < 1:  # `generate` refuses to generate zero tokens
        return [tuple(prefix)[: spec.max_new_tokens] for prefix in prefixes]
    with eval_mode(model), only_these_settings(model):
        output = model.generate(
            input_ids=ids,
            attention_mask=mask,
            generation_config=_settings(new_tokens, eos_ids),
            logits_processor=[sampler],
        )
    rows = output[:, ids.shape[1] :].tolist()
    return [
        _continued(tuple(prefix), row, eos_ids)[: spec.max_new_tokens]
        for prefix, row in zip(prefixes, rows, strict=True)
    ]


Answer: TypeAlias = Callable[[int, tuple[int, ...], int], tuple[int, Sequence[int]] | None]
"""Answers one turn of a completion: ``(row, ids, start) -> (end, given)``, or None for no reply.
The turn begins at token ``start`` and ends at ``end``; ``given`` holds the tokens of the reply."""


def generate_turns_under_coin(
    model: Any,
    prompt_ids: Sequence[Sequence[int]],
    seeds: Sequence[int],
    spec: SamplingSpec,
    answer: Answer,
    *,
    eos_ids: Sequence[int],
    most_answers: int = 8,
    family: Family = "grpo-guard",
) -> list[tuple[tuple[int, ...], tuple[Span, ...]]]:
    """Generate the only honest completion of each (prompt, seed) pair, with tools between turns.

    Each turn continues with the slot's noise at its position in the whole completion, so all a
    replay needs on top of that is the given spans.

    Args:
        model, prompt_ids, seeds, spec, eos_ids, family: As for `generate_under_coin`; the spec's
            ``max_new_tokens`` includes given tokens.
        answer: Runs the tools and returns their replies.
        most_answers: Maximum number of replies per completion; the turn after the last is final.

    Returns:
        The token ids of each completion, plus its given spans, for `Completion.given`.
    """
    ids: list[tuple[int, ...]] = [()] * len(seeds)
    given: list[tuple[Span, ...]] = [()] * len(seeds)
    rows = [*range(len(seeds))]
    for asked in range(most_answers + 1):
        drawn = generate_under_coin(
            model, [prompt_ids[i] for i in rows], [seeds[i] for i in rows], spec,
            eos_ids=eos_ids, prefixes=[ids[i] for i in rows], family=family,
        )  # fmt: skip
        answered = []
        for i, tokens in zip(rows, drawn, strict=True):
            start = given[i][-1][1] if given[i] else 0
            found = answer(i, tokens, start) if asked < most_answers else None
            ids[i] = tokens
            if found is not None:
                end, reply = found
                ids[i] = (*tokens[:end], *reply)
                given[i] = (*given[i], (end, len(ids[i])))
                answered.append(i)
        rows = answered
        if not rows:
            break
    return list(zip(ids, given, strict=True))


def _continued(
    prefix: tuple[int, ...], drawn: Sequence[int], eos_ids: Sequence[int]
) -> tuple[int, ...]:
    """Append the drawn tokens to the prefix, unless the prefix already ends with an EOS."""
    return prefix if prefix[-1:] and prefix[-1] in eos_ids else prefix + until_eos(drawn, eos_ids)


def until_eos(ids: Sequence[int], eos_ids: Sequence[int]) -> tuple[int, ...]:
    """Drop all tokens after the first EOS, but keep the EOS itself."""
    end = next((at + 1 for at, token in enumerate(ids) if token in eos_ids), len(ids))
    return tuple(ids[:end])


def _settings(new_tokens: int, eos_ids: Sequence[int]) -> Any:
    from transformers import GenerationConfig

    return GenerationConfig(
        do_sample=False,  # the processor draws
        num_beams=1,
        max_new_tokens=new_tokens,
        eos_token_id=list(eos_ids),
        pad_token_id=eos_ids[0],
    )


@contextmanager
def only_these_settings(model: Any) -> Iterator[None]:
    """Hide the model's generation defaults inside the context: ``generate`` would merge them in."""
    from transformers import GenerationConfig

    saved = model.generation_config
    model.generation_config = GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = saved
