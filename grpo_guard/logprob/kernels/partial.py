"""Sums over part of the vocabulary, and how several make one.

As in an online softmax (Milakov and Gimelshein, arXiv 1805.02867), each is relative to the largest
score of its own part.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Partial(NamedTuple):
    """Per row, over the tokens seen so far, with e = exp(z - m); shape [N] each."""

    m: Tensor
    above: Tensor  # sum e over z > z_target
    below: Tensor  # sum e over z <= z_target; total - above would lose a tail of 1e-8 to rounding
    weighted: Tensor  # sum (z - m) e
    squared: Tensor  # sum (z - m)^2 e
    half: Tensor  # sum e^0.5, or 0 where nobody asks
    three_quarters: Tensor  # sum e^0.75, or 0 where nobody asks
    rank: Tensor  # int64: tokens with z > z_target
    ties: Tensor  # int64: tokens within the tie margin, the target itself included unless -inf

    @property
    def total(self) -> Tensor:
        return self.above + self.below


def merge(*parts: Partial) -> Partial:
    """The sums over all parts."""
    stacked = Partial(*map(torch.stack, zip(*parts, strict=True)))
    m = stacked.m.amax(0)
    return Partial(m, *(column.sum(0) for column in _relative_to(m, stacked)[1:]))


def _relative_to(m: Tensor, p: Partial) -> Partial:
    empty = p.m == -torch.inf  # nothing but -inf so far: there is nothing to move
    d = torch.where(empty, 0.0, p.m - m)
    f = torch.where(empty, 0.0, d.exp())
    return Partial(
        m,
        p.above * f,
        p.below * f,
        (p.weighted + d * p.total) * f,
        (p.squared + 2 * d * p.weighted + d * d * p.total) * f,
        p.half * f.sqrt(),
        p.three_quarters * f**0.75,
        p.rank,
        p.ties,
    )
