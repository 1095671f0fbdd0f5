"""Different models for a heterogeneous swarm, made from one policy by a little more training.

Each has seen other texts of the bundled corpus and samples at another temperature, so that weights
and habits differ while all of them know the task. Real swarms differ more; see `docs/swarm.md`.
"""

from __future__ import annotations

import copy
import random
from typing import Final

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grpo_guard.evals.policies import corpus
from grpo_guard.evals.swarm.grpo import Weighted, accumulate
from grpo_guard.evals.swarm.members import Peer

TEMPERATURES: Final = (1.0, 0.9, 1.1, 0.95, 1.05)
STEPS, BATCH, LR = 20, 32, 3e-4


def variants(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, count: int, *, steps: int = STEPS
) -> list[Peer]:
    """``count`` policies, the first of them ``model`` itself; equal calls give equal weights."""
    peers = [Peer(model, tokenizer, TEMPERATURES[0])]
    for number in range(1, count):
        own = _trained_on(
            copy.deepcopy(model), tokenizer, random.Random(f"variant {number}"), steps
        )
        peers.append(Peer(own, tokenizer, TEMPERATURES[number % len(TEMPERATURES)]))
    return peers


def _trained_on(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rng: random.Random, steps: int
) -> PreTrainedModel:
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    for _ in range(steps):
        batch = []
        for prompt, text in (corpus.sample(rng) for _ in range(BATCH)):
            ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
            batch.append(Weighted(tokenizer.encode(prompt, add_special_tokens=False), ids, 1.0))
        optimizer.zero_grad(set_to_none=True)
        accumulate(model, batch, BATCH)
        optimizer.step()
    model.zero_grad(set_to_none=True)
    return model
