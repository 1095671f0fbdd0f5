"""The paper's objective: one update per generation phase, weighed by advantages.

loss = mean_i (1/|a_i|) sum_t (pi / detached pi) A_i, negated. With one update per generation the
ratio is 1 and its gradient is that of A_i log pi, which is what is computed here; foreign
completions count as on-policy, no clipping, by default no KL term. One scalar weights every token
of a completion, and that is what the attacks live on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax
from transformers import DynamicCache, PreTrainedModel


@dataclass(frozen=True, slots=True)
class Weighted:
    """One completion of the update: its tokens, its advantage, and the [start, end) left out.

    ``claimed`` are the log-probs that its sender says it sampled with, one per token.
    """

    prompt_ids: Sequence[int]
    ids: Sequence[int]
    advantage: float
    masked: tuple[tuple[int, int], ...] = ()
    claimed: Sequence[float] | None = None


@dataclass(frozen=True, slots=True)
class OffPolicy:
    """Filtering and truncated importance sampling, as in F-TIS (arXiv 2605.22537).

    Each token is weighed by min(pi / pi_gen, ``most_ratio``), and a completion is left out where
    its advantage is negative and KL(pi || pi_gen) is above ``most_kl``. pi_gen is what the sender
    *claims*; where it claims nothing the ratio is 1. Positive advantages are kept however far off
    the policy their completions are, so that this is no defence against poison, and a lie about
    pi_gen costs nothing.

    Args:
        most_kl: In nats over a whole completion, estimated on its tokens as the sum of
            r log r - (r - 1) with r = pi / pi_gen. The source names g = 50 and no estimator; the
            sum is our reading.
        most_ratio: C of the source.
    """

    most_kl: float
    most_ratio: float = 2.0

    def factors(self, logprobs: Tensor, part: Sequence[Weighted]) -> Tensor:
        """What the weights of all tokens of ``part``, one after the other, are multiplied by, [n].

        ``logprobs`` [n] are the local policy's.
        """
        found, first = torch.ones_like(logprobs), 0
        for item in part:
            here = slice(first, first + len(item.ids))
            first += len(item.ids)
            if item.claimed is None:
                continue
            # A claim may be anything: beyond e^20 a ratio is as good as infinite.
            gap = (logprobs[here] - logprobs.new_tensor(item.claimed)).nan_to_num(0.0)
            gap = gap.clamp(-20.0, 20.0)
            ratio = gap.exp()
            distance = float((ratio * gap - (ratio - 1)).sum())
            if item.advantage < 0 and distance > self.most_kl:
                found[here] = 0.0
            else:
                found[here] = ratio.clamp(max=self.most_ratio)
        return found


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
    cap_below: float = 0.0,
    off_policy: OffPolicy | None = None,
    share_prompts: bool = False,
) -> float:
    """Add the gradient of the loss over ``batch`` to ``model``; return the loss's value.

    The value is -mean A_i (the ratio is 1) without the KL term, so it says little; the gradient is
    what matters. Completions with advantage 0 cost nothing but still count in the mean; with a KL
    term they have a gradient of their own. ``cap_below`` and ``share_prompts`` are those of
    `SwarmConfig`; a KL term shares nothing.
    """
    active = [item for item in batch if (item.advantage != 0 or kl) and item.ids]
    total = max(1, len(batch))
    one_prompt = share_prompts and kl is None
    for part in _parts(active, micro_batch, one_prompt):
        ids, mask = collate(part, model.device)
        if one_prompt:
            hidden = _after_shared_prompt(model, part, ids)[mask]
        else:
            # Padding stands on the right of a causal model, so no attention mask is needed.
            states = model.base_model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
            hidden = states[mask]
        logits = model.get_output_embeddings()(hidden)
        nll = cross_entropy(logits.float(), ids[:, 1:][mask], reduction="none")
        weight = _token_weights(part, total).to(model.device)
        if cap_below > 0:
            capped = (torch.exp(-nll.detach()) / cap_below).clamp(max=1.0)
            weight = torch.where(weight > 0, weight * capped, weight)
        if off_policy is not None:
            weight = weight * off_policy.factors(-nll.detach(), part)
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
    """At most ``micro_batch`` at once, of similar lengths; ``one_prompt``: all of one."""

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
    """Hidden states of ``ids[:, :-1]``, [N, L - 1, H]; the prompt is computed once, with gradient.

    But for its last token, whose state predicts the first token of each completion, the prompt's
    own states are left at zero: nothing is predicted there.
    """
    prompt = len(part[0].prompt_ids)
    cache = DynamicCache(config=model.config)
    base = model.base_model
    before = base(input_ids=ids[:1, :prompt], past_key_values=cache, use_cache=True)
    last: Tensor = before.last_hidden_state[:, -1:]
    cache.batch_repeat_interleave(len(ids))
    rows = [last.new_zeros(len(ids), prompt - 1, last.shape[-1]), last.expand(len(ids), -1, -1)]
    if ids.shape[1] - 1 > prompt:
        after = base(input_ids=ids[:, prompt:-1], past_key_values=cache, use_cache=True)
        rows.append(after.last_hidden_state)
    return torch.cat(rows, dim=1)


def _token_weights(part: Sequence[Weighted], total: int) -> Tensor:
    """The weight of each predicted token of the completions, one after the other, [n]."""
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
    """KL(policy || reference) of each predicted token, [n]; ``logits`` [n, V] are the policy's."""
    with torch.no_grad():
        hidden = reference.base_model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
        theirs = log_softmax(reference.get_output_embeddings()(hidden[mask]).float(), dim=-1)
    ours = log_softmax(logits.float(), dim=-1)
    return (ours.exp() * (ours - theirs)).sum(dim=-1)
