"""Find the winning token in the whole vocabulary, under a sampler without truncation."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from grpo_guard.logprob.kernels.tiled import TILE
from grpo_guard.logprob.noise import gumbel
from grpo_guard.logprob.replay.margins import Margins, RowReplay
from grpo_guard.logprob.replay.vocabulary_hash import (
    FLIPS,
    contender_counts,
    contenders,
    hash_prefix,
    token_keys,
)

# Gumbel noise falls below -2 once in 1,600 times, so with noise a tile's most likely token nearly
# always stays above its own score minus this. If not, a competitor can be overlooked, but never
# invented.
FLOOR = 2.0


class Contenders:
    """An observer of `row_stats` that finds each row's best token other than the target.

    For samplers without truncation. The most likely tokens alone would not suffice: at T = 1, a few
    percent of all draws fall outside the 64 most likely, and overlooking them would let an attacker
    choose among several tokens there. ``own`` is the score of each row's target, and ``counts`` can
    be a compiled form of `contender_counts`.
    """

    def __init__(
        self,
        own: Tensor,
        targets: Tensor,
        replay: RowReplay,
        vocab_size: int,
        counts: Callable[..., Tensor] = contender_counts,
    ) -> None:
        self.targets, self.replay, self.counts = targets, replay, counts
        family = replay.settings.family
        self.own = own + gumbel(replay.seeds, replay.positions, targets, family)
        self.best = torch.full_like(own, -torch.inf)
        self.token = targets.clone()
        self.prefix = hash_prefix(replay.seeds, replay.positions, family)
        self.flip = FLIPS[family]
        self.keys = token_keys(vocab_size, own.device)

    def __call__(self, z: Tensor, start: int) -> None:
        """Add the scores of tokens [start, start + W), shape [N, W]."""
        keys = self.keys[start : start + z.shape[-1]]
        counts = self.counts if z.shape[-1] == TILE else contender_counts  # compile just one shape
        # Without the last term, every token would be a contender against a hopeless target.
        floor = torch.maximum(torch.maximum(self.own, self.best), z.amax(-1) - FLOOR)
        rows = torch.nonzero(counts(z, floor, self.prefix, keys, self.flip))[:, 0]
        if not len(rows):
            return
        hits = contenders(z[rows], floor[rows], self.prefix[rows], keys, self.flip)
        at, tokens = torch.nonzero(hits, as_tuple=True)
        at, tokens = rows[at], tokens + start
        seeds, positions = self.replay.seeds[at], self.replay.positions[at]
        noise = gumbel(seeds, positions, tokens, self.replay.settings.family)
        perturbed = z[at, tokens - start] + noise
        other = tokens != self.targets[at]
        at, tokens, perturbed = at[other], tokens[other], perturbed[other]
        better = self.best.scatter_reduce(0, at, perturbed, "amax")
        won = (perturbed == better[at]) & (perturbed > self.best[at])
        self.token[at[won]] = tokens[won]
        self.best = better

    def margins(self, own: Tensor, temperature: float) -> Margins:
        """Return the margins of the rows' targets, whose scores are ``own``, shape [N]."""
        margin = ((self.best - self.own) * temperature).clamp_min(0.0)
        margin = torch.where(own == -torch.inf, torch.inf, margin)
        return Margins(margin, torch.where(margin > 0, self.token, self.targets))
