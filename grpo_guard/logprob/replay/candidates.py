"""Collect each row's most likely tokens, or its winner, from the tiles of the scoring pass."""

from collections.abc import Callable

import torch
from torch import Tensor

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.logprob.kernels.tiled import TILE
from grpo_guard.logprob.noise import (
    FLIPS,
    contender_counts,
    contenders,
    gumbel,
    hash_prefix,
    token_keys,
)
from grpo_guard.logprob.replay.margins import Margins, RowReplay

# Maximum number of competitors, for samplers that keep more tokens, or all of them. A winner beyond
# these is overlooked, which can make the claimed token look better than it is, but never worse.
MOST_CANDIDATES = 64
# Number of tokens in a tile that share a maximum. Their ids are tile width / BLOCK apart, so that
# the maximum is taken over whole vectors.
BLOCK = 32
# Gumbel noise falls below -2 once in 1,600 times, so with noise a tile's most likely token nearly
# always stays above its own score minus this. If not, a competitor can be overlooked, but never
# invented.
FLOOR = 2.0


def candidates_for(spec: SamplingSpec) -> int:
    """Return how many tokens per row matter: the support, plus one more to reveal its edge."""
    return min(spec.top_k + 1, MOST_CANDIDATES) if spec.top_k > 0 else MOST_CANDIDATES


class Candidates:
    """An observer of `row_stats` that keeps each row's ``most`` largest scores and their tokens.

    After the first few tiles, hardly any new token is among the largest. So a tile costs one
    maximum over each of its blocks, and only blocks whose maximum exceeds the row's lowest
    candidate are searched.
    """

    def __init__(self, rows: int, most: int, device: torch.device) -> None:
        self.values = torch.full((rows, most), -torch.inf, device=device)
        self.tokens = torch.full((rows, most), -1, device=device)

    def __call__(self, z: Tensor, start: int) -> None:
        """Add the scores of tokens [start, start + W), shape [N, W]."""
        width = z.shape[-1]
        # In the first tile every token is a candidate, and the last may not divide evenly into
        # blocks.
        if start == 0 or width % BLOCK:
            most = min(self.values.shape[-1], width)
            values, index = z.topk(most, -1)
            self._merge(values, index + start)
            return
        blocks = z.view(len(z), BLOCK, width // BLOCK)
        floor = self.values[:, -1:]
        rows, places = torch.nonzero(blocks.amax(1) > floor, as_tuple=True)
        if not len(rows):
            return
        inside = blocks[rows, :, places]
        hit, member = torch.nonzero(inside > floor[rows], as_tuple=True)
        tokens = start + member * (width // BLOCK) + places[hit]
        self._merge(*_by_row(rows[hit], inside[hit, member], tokens, len(z)))

    def _merge(self, values: Tensor, tokens: Tensor) -> None:
        most = self.values.shape[-1]
        together = torch.cat([self.values, values], -1)
        self.values, index = together.topk(most, -1)
        self.tokens = torch.cat([self.tokens, tokens], -1).gather(-1, index)


def _by_row(rows: Tensor, values: Tensor, tokens: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Convert lists of (row, value, token), sorted by row, to padded [n, longest]."""
    counts = torch.bincount(rows, minlength=n)
    column = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[rows]
    shape = (n, int(counts.max()))
    padded = torch.full(shape, -torch.inf, device=rows.device)
    ids = torch.full(shape, -1, device=rows.device)
    padded[rows, column] = values
    ids[rows, column] = tokens
    return padded, ids


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
