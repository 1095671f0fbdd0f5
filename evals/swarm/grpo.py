"""The paper's objective: one update per generation phase, weighted by advantages.

loss = mean_i (1/|a_i|) sum_t (pi / detached pi) A_i, negated. With one update per generation, the
ratio is 1 and its gradient is that of A_i log pi, which is what is computed here. Other nodes'
completions count as on-policy, without clipping and, by default, without a KL term. A single scalar
weights all tokens of a completion, which is what the attacks exploit.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax
from transformers import DynamicCache, PreTrainedModel

from grpo_guard.logprob.scorers.forward import with_cache

# A group of equal rewards has sigma 0; float rounding must not turn that into an advantage.
MIN_SIGMA: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Weighted:
    """A completion in the update: tokens, advantage, and the token spans [start, end) left out."""

    prompt_ids: Sequence[int]
    ids: Sequence[int]
    advantage: float
    masked: tuple[tuple[int, int], ...] = ()


Reweighed: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Called with the token weights of all completions, concatenated, [n], and the tokens' log-probs
under the local policy, [n]; returns the weights to use."""


def advantages(rewards: Tensor, kept: Tensor | None = None, *, scaled: bool = True) -> Tensor:
    """Compute the advantages of B groups of G completions, [B, G] like ``rewards``.

    The advantage is (r - mean) / sigma, as in the paper (arXiv 2511.09780), with the population
    sigma; if ``scaled`` is False, it is r - mean, as in the authors' code and in Dr. GRPO.

    ``kept`` (bool, [B, G]) marks the completions that count: the others are excluded from every
    statistic and get advantage 0. A group whose kept rewards are all equal, or that keeps fewer
    than two completions, gets 0 throughout.
    """
    if rewards.ndim != 2:
        raise ValueError(f"rewards: expected shape [B, G], got {tuple(rewards.shape)}")
    weight = torch.ones_like(rewards) if kept is None else kept.to(rewards.dtype)
    count = weight.sum(dim=1, keepdim=True).clamp(min=1)
    mean = (rewards * weight).sum(dim=1, keepdim=True) / count
    centred = (rewards - mean) * weight
    sigma = (centred.square().sum(dim=1, keepdim=True) / count).sqrt()
    scale = sigma.clamp(min=MIN_SIGMA) if scaled else torch.ones_like(sigma)
    return torch.where(sigma > MIN_SIGMA, centred / scale, 0.0)


def collate(batch: Sequence[Weighted], device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """Return (ids [N, L] padded on the right, mask [N, L - 1] of predicted completion tokens)."""
    longest = max(len(item.prompt_ids) + len(item.ids) for item in batch)
    ids = torch.zeros((len(batch), longest), dtype=torch.long)
    mask = torch.zeros((len(batch), longest - 1), dtype=torch.bool)
    for row, item in enumerate(batch):
        start, end = len(item.prompt_ids), len(item.prompt_ids) + len(item.ids)
        ids[row, :end] = torch.tensor([*item.prompt_ids, *item.ids])
        mask[row, start - 1 : end - 1] = True
    return ids.to(device), mask.to(device)


@dataclass(frozen=True, slots=True)
class KLTerm:
    """``beta`` times KL(policy || ``reference``) per token, exact over the vocabulary."""

    reference: PreTrainedModel
    beta: float


def accumulate(
    model: PreTrainedModel,
    batch: Sequence[Weighted],
    micro_batch: int,
    kl: KLTerm | None = None,
    *,
    reweighed: Reweighed | None = None,
    share_prompts: bool = False,
) -> float:
    """Add the gradient of the loss over ``batch`` to ``model``; return the loss's value.

    The value is -mean A_i (the ratio is 1) without the KL term, so it means little; what matters is
    the gradient. Completions with advantage 0 cost nothing but still count toward the mean; with a
    KL term, they have a gradient. ``share_prompts``, as in `SwarmConfig`, is ignored with one.
    """
    active = [item for item in batch if (item.advantage != 0 or kl) and item.ids]
    total = max(1, len(batch))
    one_prompt = share_prompts and kl is None
    for part in _parts(active, micro_batch, one_prompt):
        ids, mask = collate(part, model.device)
        if one_prompt:
            hidden = _after_shared_prompt(model, part, ids)[mask]
        else:
            # Padding is on the right of a causal model, so no attention mask is needed.
            states = model.base_model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
            hidden = states[mask]
        logits = model.get_output_embeddings()(hidden)
        nll = cross_entropy(logits.float(), ids[:, 1:][mask], reduction="none")
        weight = _token_weights(part, total).to(model.device)
        if reweighed is not None:
            weight = reweighed(weight, -nll.detach())
        loss = (nll * weight).sum()
        if kl is not None:
            share = nll.new_tensor([kl.beta / len(item.ids) / total for item in part])
            distance = _divergence(logits, ids, mask, kl.reference)
            loss = loss + (distance * share.repeat_interleave(mask.sum(dim=1))).sum()
        torch.autograd.backward(loss)
    return -sum(item.advantage for item in batch) / total


def _parts(
    active: Sequence[Weighted], micro_batch: int, one_prompt: bool
) -> Iterator[Sequence[Weighted]]:
    """Yield micro-batches of completions of similar length, with a single prompt if requested."""

    def length(item: Weighted) -> int:
        return len(item.prompt_ids) + len(item.ids)

    def prompt(item: Weighted) -> tuple[int, ...]:
        return tuple(item.prompt_ids)

    groups = [sorted(active, key=length)]
    if one_prompt:
        by_prompt = groupby(sorted(active, key=prompt), key=prompt)
        groups = [sorted(found, key=length) for _, found in by_prompt]
    for group in groups:
        for start in range(0, len(group), micro_batch):
            yield group[start : start + micro_batch]


def _after_shared_prompt(model: PreTrainedModel, part: Sequence[Weighted], ids: Tensor) -> Tensor:
    """Return hidden states of ``ids[:, :-1]``, [N, L - 1, H], computing the prompt only once.

    Gradients flow through the prompt. The prompt's states are left at zero because nothing is
    predicted there, except for its last token, which predicts the first token of each completion.
    """
    prompt = len(part[0].prompt_ids)
    cache = DynamicCache(config=model.config)
    base = model.base_model
    before = base(input_ids=ids[:1, :prompt], use_cache=True, **with_cache(base, cache))
    last: Tensor = before.last_hidden_state[:, -1:]
    cache.batch_repeat_interleave(len(ids))
    rows = [last.new_zeros(len(ids), prompt - 1, last.shape[-1]), last.expand(len(ids), -1, -1)]
    if ids.shape[1] - 1 > prompt:
        after = base(input_ids=ids[:, prompt:-1], use_cache=True, **with_cache(base, cache))
        rows.append(after.last_hidden_state)
    return torch.cat(rows, dim=1)


def _token_weights(part: Sequence[Weighted], total: int) -> Tensor:
    """Return the weight of each predicted token of the completions, concatenated, [n]."""
    counts = torch.tensor([len(item.ids) for item in part])
    weight = torch.tensor([item.advantage / len(item.ids) / total for item in part])
    weight = weight.repeat_interleave(counts)
    first = 0
    for item in part:
        for start, end in item.masked:
            weight[first + start : first + end] = 0.0
        first += len(item.ids)
    return weight


def _divergence(logits: Tensor, ids: Tensor, mask: Tensor, reference: PreTrainedModel) -> Tensor:
    """Return KL(policy || reference) per predicted token, [n], given the policy's logits [n, V]."""
    with torch.no_grad():
        hidden = reference.base_model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
        theirs = log_softmax(reference.get_output_embeddings()(hidden[mask]).float(), dim=-1)
    ours = log_softmax(logits.float(), dim=-1)
    return (ours.exp() * (ours - theirs)).sum(dim=-1)
