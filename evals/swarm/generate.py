"""Batched sampling with a key/value cache: the generation phase of an honest node."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.logprob.noise import signed
from grpo_guard.logprob.replay.draw import draw as draw_under_coin
from grpo_guard.logprob.scorers.forward import left_padded, with_cache

# Finished rows are removed from the batch once this share of it is done; each removal copies the
# cache, so it is not worth doing for single rows.
_COMPACT_AT = 0.25


@dataclass(frozen=True, slots=True)
class Sampled:
    """A completion of the prompt at index ``prompt``; ``ids`` end with EOS unless cut off."""

    prompt: int
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    text: str

    def finish_reason(self, eos: int) -> str:
        """Return what an engine would report as finish reason, judging by the ids alone."""
        return "stop" if self.ids[-1:] == (eos,) else "length"


@torch.inference_mode()
def sample(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    per_prompt: int,
    *,
    generator: torch.Generator,
    temperature: float = 1.0,
    top_k: int = 50,
    max_new_tokens: int = 64,
    seeds: Sequence[int] | None = None,
) -> list[Sampled]:
    """Sample ``per_prompt`` completions for each prompt, in prompt order.

    A ``temperature`` of 0 means greedy decoding. Each prompt is prefilled once, and its KV cache is
    reused for all completions in the group. If ``seeds`` is given (one per completion, from
    `PublicCoin.seed`), ``generator`` is ignored and each completion is determined by its seed, as
    in `generate_under_coin`.
    """
    prompt_ids = [tokenizer.encode(prompt, add_special_tokens=False) for prompt in prompts]
    cache, mask, logits = _prefill(model, prompt_ids, int(tokenizer.pad_token_id))
    cache.batch_repeat_interleave(per_prompt)
    mask = mask.repeat_interleave(per_prompt, dim=0)
    logits = logits.repeat_interleave(per_prompt, dim=0)
    eos = int(tokenizer.eos_token_id)
    device = logits.device
    rows = torch.arange(len(logits), device=device)
    done = torch.zeros(len(logits), dtype=torch.bool, device=device)
    position = mask.sum(dim=1)
    drawn = torch.full((len(logits), max_new_tokens), eos, device=device)
    coin = None if seeds is None else SamplingSpec("transformers", temperature, top_k, 1.0)
    noise = torch.tensor([signed(seed) for seed in seeds or ()], dtype=torch.int64, device=device)
    for step in range(max_new_tokens):
        if coin is not None:
            scores, positions = logits.float() / coin.temperature, torch.full_like(rows, step)
            token = draw_under_coin(scores, noise[rows], positions, coin)
        else:
            token = draw(logits, generator=generator, temperature=temperature, top_k=top_k)
        token[done] = eos
        drawn[rows, step] = token
        done |= token == eos
        if step + 1 == max_new_tokens or bool(done.all()):
            break
        if done.sum() > _COMPACT_AT * len(done):
            kept = (~done).nonzero().squeeze(1)
            cache.batch_select_indices(kept)
            rows, mask, position, token, done = (
                rows[kept], mask[kept], position[kept], token[kept], done[kept],
            )  # fmt: skip
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
        out = model(
            input_ids=token[:, None],
            attention_mask=mask,
            position_ids=position[:, None],
            use_cache=True,
            **with_cache(model, cache),
        )
        logits, position = out.logits[:, -1], position + 1
    return _collect(tokenizer, prompt_ids, drawn, per_prompt, eos)


def _prefill(
    model: PreTrainedModel, prompt_ids: Sequence[Sequence[int]], pad: int
) -> tuple[DynamicCache, Tensor, Tensor]:
    """Return (cache, attention mask [B, P], next-token logits [B, V]), padded on the left."""
    ids, mask = left_padded(prompt_ids, pad, model.device)
    cache = DynamicCache(config=model.config)
    out = model(
        input_ids=ids,
        attention_mask=mask,
        # Padding must not shift the positions: a prompt must have the same logits in any batch.
        position_ids=(mask.cumsum(dim=1) - 1).clamp(min=0),
        use_cache=True,
        logits_to_keep=1,
        **with_cache(model, cache),
    )
    return cache, mask, out.logits[:, -1]


def draw(logits: Tensor, *, generator: torch.Generator, temperature: float, top_k: int) -> Tensor:
    """Draw one token per row of ``logits`` [N, V] from the ``top_k`` most likely (0 for all)."""
    if temperature == 0:
        return logits.argmax(dim=-1)
    size = logits.shape[-1]
    values, tokens = logits.topk(min(top_k or size, size), dim=-1)
    weights = torch.softmax(values.float() / temperature, dim=-1)
    # On the CPU, where the generators are, so the numbers are the same no matter what the model
    # runs on.
    chosen = torch.multinomial(weights.cpu(), 1, generator=generator).to(tokens.device)
    return tokens.gather(1, chosen).squeeze(1)


def _collect(
    tokenizer: PreTrainedTokenizerBase,
    prompt_ids: Sequence[Sequence[int]],
    drawn: Tensor,
    per_prompt: int,
    eos: int,
) -> list[Sampled]:
    kept: list[list[int]] = []
    for row in drawn.tolist():
        kept.append(row[: row.index(eos) + 1] if eos in row else row)
    # The EOS token carries no text; everything else is decoded as it is.
    bodies = [ids[:-1] if ids[-1] == eos else ids for ids in kept]
    texts = tokenizer.batch_decode(bodies, skip_special_tokens=False)
    return [
        Sampled(i // per_prompt, tuple(prompt_ids[i // per_prompt]), tuple(ids), text)
        for i, (ids, text) in enumerate(zip(kept, texts, strict=True))
    ]
