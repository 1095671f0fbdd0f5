"""Collect each row's most likely tokens from the tiles of the scoring pass."""

from __future__ import annotations

import torch
from torch import Tensor

from grpo_guard.core.sampling import SamplingSpec

# Maximum number of competitors, for samplers that keep more tokens, or all of them. A winner beyond
# these is overlooked, which can make the claimed token look better than it is, but never worse.
MOST_CANDIDATES = 64
# Number of tokens in a tile that share a maximum. Their ids are tile width / BLOCK apart, so that
# the maximum is taken over whole vectors.
BLOCK = 32


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
