"""E-processes: evidence against a node, accumulated over batches and valid at any time.

A test supplies one *factor* per batch: if the node is honest, the factor's mean given the past is
at most 1, like the pay-off of a fair bet. The wealth of the bet is multiplied by the factor. A new
bet with a share of the stake starts at each batch, so that a long honest record barely delays the
detection of later poison:

    wealth after batch b = factor_b * (wealth before + 1 / ((b + 1)(b + 2))),   b = 0, 1, ...

The shares add up to 1, and after b batches 1 / (b + 1) of the stake is still in reserve. So the
mean of the wealth and the reserve together is at most 1, and by Ville's inequality the chance that
an honest node ever reaches 1 / alpha is at most alpha, however many batches it sends.

Several bets, the *columns*, run side by side, each with its own factor per batch and a weight fixed
in advance. The e-value is the sum of their wealth: an average of fair bets is a fair bet. Each
column multiplies separately, so that a bet that wins a little in each batch keeps its winnings.

The ledger (`evidence`) takes each start at its worst choice of peers, which can change every round,
so its evidence is a sum over remembered rounds rather than one number to multiply. The ledger uses
only the shares of the starts and the threshold from this module. So does `content.recurrence`,
whose p-values do not multiply: it spends alpha over its looks.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from grpo_guard.nodes.saved import number, whole

CAP: Final = math.log(1e12)
"""Maximum log wealth of a column, so that a node that stops cheating is released after some honest
batches. Taking wealth away keeps the bet fair."""
FLOOR: Final = -1e6
"""Minimum log wealth of a column, which is negligible next to any start's share."""
# Number of digests kept, so that a batch judged twice by a trainer counts once.
_REMEMBERED: Final = 4


def log_threshold(alpha: float, tests: float = 1.0) -> float:
    """Return the log e-value at which a node is convicted. ``alpha`` is the chance that any honest
    node ever reaches this value, divided among ``tests`` e-processes."""
    return math.log(tests / alpha)


def log_share(start: int) -> float:
    """Logarithm of the stake share given to start number 0, 1, ...; the shares sum to 1."""
    return -math.log((start + 1.0) * (start + 2.0))


def log_shares(starts: NDArray[Any]) -> NDArray[np.float64]:
    """Return the `log_share` of each start in an array."""
    return np.asarray(-np.log((starts + 1.0) * (starts + 2.0)))


def log_add(a: float, b: float) -> float:
    """Logarithm of the sum of two numbers, from their logarithms; one may be -inf."""
    most, least = (a, b) if a > b else (b, a)
    return most + math.log1p(math.exp(least - most))


@dataclass(frozen=True, slots=True)
class EProcess:
    """One e-process: the evidence against one node, or one pair of nodes.

    Args:
        log_wealth: Logarithm of each column's weighted wealth; empty before the first batch.
        starts: Number of batches so far; a bet starts at each.
        seen: Digests of the latest batches.
    """

    log_wealth: tuple[float, ...] = ()
    starts: int = 0
    seen: tuple[int, ...] = ()

    @property
    def log_e_value(self) -> float:
        """Logarithm of the wealth of all columns; -inf before the first batch."""
        if not self.log_wealth:
            return -math.inf
        most = max(self.log_wealth)
        return most + math.log(sum(math.exp(log - most) for log in self.log_wealth))

    @property
    def log_reserve(self) -> float:
        """Logarithm of the part of the stake that is left for later starts. A test can add this
        part to the e-value: it is a bet that has neither won nor lost anything yet."""
        return -math.log(self.starts + 1.0)

    def after(
        self,
        log_factors: Sequence[float],
        weights: Sequence[float] = (1.0,),
        *,
        cap: float = CAP,
        digest: int | None = None,
    ) -> "EProcess":
        """Return the e-process after one more batch, given the logarithm of each column's factor.
        The weights of the columns add up to 1, and ``cap`` limits the log wealth of each.
        ``digest`` identifies the batch; a recently seen batch changes nothing."""
        if digest is not None and digest in self.seen:
            return self
        share = log_share(self.starts)
        before = self.log_wealth or (-math.inf,) * len(weights)
        staked = [
            float(factor) + log_add(log, math.log(weight) + share)
            for factor, log, weight in zip(log_factors, before, weights, strict=True)
        ]
        wealth = tuple(min(max(log, FLOOR), cap) for log in staked)
        seen = self.seen if digest is None else (*self.seen, digest)[-_REMEMBERED:]
        return EProcess(wealth, self.starts + 1, seen)

    def row(self) -> list[Any]:
        """Return the e-process as plain JSON values."""
        return [list(self.log_wealth), self.starts, *self.seen]

    @classmethod
    def of_row(cls, row: Sequence[Any], columns: int, cap: float = CAP) -> "EProcess":
        """Rebuild an e-process from what `row` returned; raises ValueError or TypeError for any
        other form."""
        logs, starts, *seen = row
        if len(logs) != columns:
            raise ValueError(f"{len(logs)} columns")
        if len(seen) > _REMEMBERED:
            raise ValueError(f"{len(seen)} digests")
        wealth = tuple(number(log, FLOOR, cap) for log in logs)
        return cls(wealth, whole(starts), tuple(whole(digest) for digest in seen))
