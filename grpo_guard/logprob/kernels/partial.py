"""Accumulate the sums defined in `statistics.py` over successive parts of the vocabulary."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from grpo_guard.logprob.kernels.statistics import COUNTS, Partial, merged

MOST_PARTS: Final = 16


class PartialSums:
    """Collects the sums of successive parts and merges them a few at a time.

    The sums are written into preallocated tensors shaped like the column ``like``, fp32, [N]: small
    results that outlive large temporaries would fragment the heap and make it grow by hundreds of
    MB.
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
        """Add the sums for another part of the vocabulary."""
        if self._count == MOST_PARTS:
            whole, self._count = self.total(), 0
            self.add(whole)
        for column, values in zip(self._columns, part, strict=True):
            column[self._count] = values
        self._count += 1

    def total(self) -> Partial:
        """Return the sums over all parts added so far; requires at least one part."""
        return merged(Partial(*(column[: self._count] for column in self._columns)))
