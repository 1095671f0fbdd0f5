"""Sums over part of the vocabulary, and how they merge.

As in an online softmax (Milakov and Gimelshein, arXiv 1805.02867), each is relative to the largest
score of its own part.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

MOST_PARTS: Final = 16
COUNTS: Final = ("rank", "ties")


class Partial(NamedTuple):
    """Per row, over the tokens seen so far, with e = exp(z - m); shape [N] each."""

    m: Tensor
    above: Tensor  # sum e over z > z_target
    below: Tensor  # sum e over z <= z_target; total - above would lose a tail of 1e-8 to rounding
    weighted: Tensor  # sum (z - m) e
    half: Tensor  # sum e^0.5, or 0 if not requested
    three_quarters: Tensor  # sum e^0.75, or 0 if not requested
    rank: Tensor  # int64: tokens with z > z_target
    ties: Tensor  # int64: tokens with z == z_target, the target itself included unless -inf

    @property
    def total(self) -> Tensor:
        return self.above + self.below


class PartialSums:
    """Collects the sums of one part after another and merges them a few at a time.

    They are written into preallocated tensors: small results that outlive large temporaries would
    fragment the heap, which then grows by hundreds of megabytes.

    Args:
        like: A column of the future parts, fp32, shape [N].
    """

    def __init__(self, like: Tensor) -> None:
        self._count = 0
        self._columns = Partial(
            *(
                like.new_empty(
                    MOST_PARTS, len(like), dtype=torch.int64 if name in COUNTS else like.dtype
                )
                for name in Partial._fields
            )
        )

    def add(self, part: Partial) -> None:
        """Add one more part."""
        if self._count == MOST_PARTS:
            whole, self._count = self.total(), 0
            self.add(whole)
        for column, values in zip(self._columns, part, strict=True):
            column[self._count] = values
        self._count += 1

    def total(self) -> Partial:
        """Return the sums over all parts added; there must be at least one."""
        return _merged(Partial(*(column[: self._count] for column in self._columns)))


def merge(a: Partial, b: Partial) -> Partial:
    """Return the sums over both parts."""
    return _merged(Partial(*map(torch.stack, zip(a, b, strict=True))))


def _merged(parts: Partial) -> Partial:
    """[P, N] -> [N]."""
    m = parts.m.amax(0)
    return Partial(m, *(column.sum(0) for column in _relative_to(m, parts)[1:]))


def _relative_to(m: Tensor, p: Partial) -> Partial:
    empty = p.m == -torch.inf  # only -inf so far: there is nothing to rescale
    d = torch.where(empty, 0.0, p.m - m)
    f = torch.where(empty, 0.0, d.exp())
    # A part far below contributes nothing: a d that overflows would be NaN times 0.
    d = torch.where(f > 0, d, 0.0)
    return Partial(
        m,
        p.above * f,
        p.below * f,
        (p.weighted + d * p.total) * f,
        p.half * f.sqrt(),
        p.three_quarters * f**0.75,
        p.rank,
        p.ties,
    )
