"""The policy after one more GRPO update, to imitate a node whose weights are out of step."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

LEARNING_RATE = 1e-6  # TRL's default


def one_step_later(
    model: Any, groups: Sequence[tuple[tuple[int, ...], Sequence[tuple[int, ...]]]]
) -> Any:
    """Copy the model and take one AdamW step that rewards the shorter completions in each group.

    Adam's first step moves every weight by about the learning rate, no matter what the rewards are.
    A group is (prompt, completions) as token ids, with completions of at least two lengths.
    """
    stepped = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(stepped.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    for prompt, completions in groups:
        rewards = torch.tensor([-float(len(ids)) for ids in completions])
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
        for ids, advantage in zip(completions, advantages.tolist(), strict=True):
            (-advantage * _log_probs(stepped, prompt, ids).mean()).backward()
    optimizer.step()
    stepped.zero_grad(set_to_none=True)
    return stepped


def _log_probs(model: Any, prompt: Sequence[int], ids: Sequence[int]) -> Tensor:
    """Return the log-probs of a completion's tokens, [n]."""
    tokens = torch.tensor([[*prompt, *ids]])
    logits = model(input_ids=tokens, use_cache=False).logits[0, len(prompt) - 1 : -1]
    chosen: Tensor = logits.log_softmax(-1).gather(-1, torch.tensor(ids)[:, None])[:, 0]
    return chosen
