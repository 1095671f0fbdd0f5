"""Score rows sampled with a shared seed, for tests of the replay."""

import torch

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.logprob.kernels.head_stats import replayed
from grpo_guard.logprob.kernels.scores import LogitScores
from grpo_guard.logprob.replay.draw import draw
from grpo_guard.logprob.replay.margins import (
    Replay,
    RowReplay,
)


def spec_of(**changes):
    return SamplingSpec(
        **{"engine": "transformers", "temperature": 1.0, "top_k": 0, "top_p": 1.0, **changes}
    )


def replay_of(n, seed=0, **settings):
    generator = torch.Generator().manual_seed(seed)
    seeds = torch.randint(-(2**63), 2**63 - 1, (n,), generator=generator)
    return RowReplay(Replay(**settings), seeds, torch.arange(n))


def logits_of(seed, rows, vocab, spread):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, vocab, generator=generator) * spread


def margins_of(logits, targets, spec, replay):
    """As the scorer computes them: in one pass over the row."""
    return replayed(LogitScores(logits, spec.temperature), targets, spec, replay)[1]


def drawn_from(logits, spec, replay):
    scores = logits / spec.temperature
    return draw(scores, replay.seeds, replay.positions, spec, replay.settings.family)
