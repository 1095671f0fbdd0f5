"""Different models for a heterogeneous swarm, made from one policy with a little extra training.

Each model has seen different texts of the policy's kind and samples at a different temperature, so
that weights and habits differ while all models know the task. Real swarms differ more; see
`docs/swarm.md`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, TypeAlias

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grpo_guard.evals.attacks.adversary import closed
from grpo_guard.evals.policies.bundled import texts_of
from grpo_guard.evals.swarm.grpo import Weighted, accumulate
from grpo_guard.evals.swarm.members import Peer
from grpo_guard.evals.swarm.optimiser import adam

FACTORS: Final = (1.0, 0.9, 1.1, 0.95, 1.05)
STEPS, BATCH, LR = 20, 32, 3e-4

Texts: TypeAlias = Callable[[int], Iterator[tuple[str, str]]]
"""Called with the number of a variant, counted from 1; yields its extra training texts as (prompt,
completion) pairs."""


def variants(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    count: int,
    *,
    texts: Texts | None = None,
    temperature: float = 1.0,
    steps: int = STEPS,
    lr: float = LR,
    micro_batch: int = BATCH,
) -> list[Peer]:
    """Make ``count`` policies, the first being ``model`` itself; identical calls produce identical
    weights.

    Args:
        model: The model that all policies start from.
        tokenizer: The model's tokenizer.
        count: Number of policies, the model itself included.
        texts: Texts for further training of the others. Defaults to those of the smallest bundled
            policy.
        temperature: Temperature of the first policy; the others' are up to a tenth higher or lower.
        steps: Number of training steps for each of the others.
        lr: Adam's learning rate; the default suits a model with a million parameters.
        micro_batch: Number of texts per forward pass; affects only memory.
    """
    peers = [Peer(model, tokenizer, temperature * FACTORS[0])]
    texts = texts or texts_of()
    for number in range(1, count):
        drawn = _batches(tokenizer, texts(number), steps)
        own = _trained_on(copy.deepcopy(model), drawn, lr, micro_batch)
        peers.append(Peer(own, tokenizer, temperature * FACTORS[number % len(FACTORS)]))
    return peers


def _batches(
    tokenizer: PreTrainedTokenizerBase, texts: Iterator[tuple[str, str]], steps: int
) -> Iterator[list[Weighted]]:
    for _ in range(steps):
        batch = []
        for prompt, text in islice(texts, BATCH):
            asked = tokenizer.encode(prompt, add_special_tokens=False)
            batch.append(Weighted(asked, closed(tokenizer, text), 1.0))
        yield batch


def _trained_on(
    model: PreTrainedModel, batches: Iterator[list[Weighted]], lr: float, micro_batch: int
) -> PreTrainedModel:
    optimizer = adam(model.parameters(), lr=lr)
    for batch in batches:
        optimizer.zero_grad(set_to_none=True)
        accumulate(model, batch, micro_batch)
        optimizer.step()
    model.zero_grad(set_to_none=True)
    return model
