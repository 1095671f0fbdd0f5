"""Draws from a policy under the declared sampler, in batches of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from grpo_guard.evals.swarm.config import SwarmConfig
from grpo_guard.evals.swarm.generate import Sampled, sample
from grpo_guard.evals.swarm.members import Peer

_SAMPLED_AT_ONCE = 512
"""Rows of one batch when many are drawn; bounds memory only."""


def sampler(
    peer: Peer,
    config: SwarmConfig,
    generator: torch.Generator,
    seeds: Sequence[int] | None = None,
) -> Callable[[Sequence[str], int], list[list[Sampled]]]:
    """(prompts, n) -> n samples of each prompt from the peer's live model.

    With ``seeds`` as `sample` has them, one for each completion, ``generator`` has no part in it.
    """
    temperature = config.temperature if peer.temperature is None else peer.temperature

    def draw(prompts: Sequence[str], count: int) -> list[list[Sampled]]:
        rows: list[list[Sampled]] = []
        step = max(1, _SAMPLED_AT_ONCE // max(1, count))
        for start in range(0, len(prompts), step):
            part = prompts[start : start + step]
            drawn = sample(
                peer.model, peer.tokenizer, part, count, generator=generator,
                temperature=temperature, top_k=config.top_k,
                max_new_tokens=config.max_new_tokens,
                seeds=None if seeds is None else seeds[start * count : (start + step) * count],
            )  # fmt: skip
            rows += [drawn[i * count : (i + 1) * count] for i in range(len(part))]
        return rows

    return draw
