"""A fair bet that a node did worse than its peers in one round: on average, the bet wins nothing if
the node is honest.

**Null hypothesis** for node i. In a round, given the past and the prompts, its completions are
rejected independently of one another, at an average rate of at most ``ratio * p + offset``, where p
is the rate of its honest peers in that round. p is unknown and may change from round to round.

**Bet.** Let k of node i's n completions and K of its peers' N completions be rejected, and let
A > 1 and 0 < B < 1. Then::

    E = A^k * B^K * exp(-F),  F = max over p of  n ln(1 + (A - 1) x(p)) - (1 - B) N p,
                              x(p) = min(1, ratio * p + offset)

has a mean of at most 1 under the null: ``E[A^X] = 1 + (A - 1) P(X = 1)``, the logarithm is concave,
so unequal rates within n only lower the left side, and ``ln(1 - y) <= -y`` bounds the peers' part.
The maximised function is concave in p. No estimate of p is plugged in, so nothing has to converge.

**Peers.** S is a set of h peers, all of them honest; which peers these are is unknown. The bet
against S is split into one score per peer, so that any S is scored by a sum (`Bets.score`): F is
convex in N, so counting each peer j h times gives ``F(sum of N) <= mean of F(h N_j)``. A peer that
sent nothing in a round scores 0: the rest of S then bets part of the stake, which is fair too, by
Jensen's inequality. Against a peer that sent less than the node, only the share c_j = N_j / n of
the node's work is bet: ``E[A^(c X)] <= E[A^X]^c``, and the mean of F(c_j n, h N_j) is at least the
price for the mean of the c_j. If all of the work were bet against almost nothing, the bet could
only lose, and a peer with one completion per round would shield everyone.

Sources: safe tests for 2x2 tables (Turner, Ly, Gruenwald, arXiv 2106.02693) for the form of the
bet; Ville's inequality for the level.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Rejection rates (peers, node) that the bets are tuned for, and the weight of each pair.
ALTERNATIVES = (
    (0.001, 0.03), (0.001, 0.1), (0.001, 0.5),
    (0.01, 0.1), (0.01, 0.3),
    (0.03, 0.11), (0.03, 0.25),
    (0.1, 0.4),
)  # fmt: skip
WEIGHTS = (0.15, 0.25, 0.1, 0.2, 0.05, 0.15, 0.05, 0.05)
_STEPS = 50
_REMEMBERED = 50_000


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The rate at which an honest node may be rejected: ratio * its peers' rate + offset. Raises
    ValueError if an argument is out of range."""

    ratio: float = 1.25
    offset: float = 0.01

    def __post_init__(self) -> None:
        if not 1 <= self.ratio <= 100:
            raise ValueError(f"ratio: expected a number in [1, 100], got {self.ratio!r}")
        if not 1e-4 <= self.offset < 0.5:
            raise ValueError(f"offset: expected a number in [0.0001, 0.5), got {self.offset!r}")


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of one node's completions in one round; 0 <= held <= rejected <= judged. Raises
    ValueError if the counts are inconsistent, e.g. because they come from a broken file.

    Args:
        judged: Number of completions accepted or rejected. If there are many answers to one prompt,
            each can count as a fraction.
        rejected: Number of completions rejected. It determines the normal rate when the node serves
            as a peer.
        held: Number of rejections held against the node itself: only a few per prompt, because one
            odd prompt can get all of its answers rejected together. Counting fewer keeps the bet
            fair.
    """

    judged: float
    rejected: float
    held: float

    def __post_init__(self) -> None:
        if not 0 <= self.held <= self.rejected <= self.judged < math.inf:
            raise ValueError(f"tally: expected 0 <= held <= rejected <= judged, got {self!r:.200}")


@dataclass(frozen=True, slots=True)
class _Odds:
    """A - 1, 1 - B, ln A and ln B from the module docstring, each of shape [G]."""

    up: Array
    down: Array
    log_up: Array
    log_down: Array


class Bets:
    """The G bets for one tolerance: one bet for each of `ALTERNATIVES`."""

    def __init__(self, tolerance: Tolerance) -> None:
        self.tolerance = tolerance
        self._price = lru_cache(_REMEMBERED)(self._price_of)

    def score(self, node: Tally, peer: Tally, honest: int) -> Array:
        """Return what one peer contributes to a node's log-evidence in one round, shape [G].

        The sum of the scores over any set of ``honest`` peers that really are honest is the
        logarithm of an e-value; see the module docstring.
        """
        return np.asarray(self.scores(node, [peer], honest)[0])

    def scores(self, node: Tally, peers: Sequence[Tally], honest: int) -> Array:
        """Return the `score` of each peer, shape [peers, G]."""
        # Many peers have equal tallies: score each distinct tally once.
        row = {peer: k for k, peer in enumerate(dict.fromkeys(peers))}
        found = np.zeros((len(row), len(ALTERNATIVES)))
        odds = _odds(self.tolerance, honest)
        for peer, k in row.items() if node.judged else ():
            if peer.judged:
                part = min(1.0, peer.judged / node.judged)
                price = self._price(min(node.judged, peer.judged), peer.judged, honest)
                won = part * node.held * odds.log_up - price
                found[k] = won / honest + peer.rejected * odds.log_down
        return found[[row[peer] for peer in peers]]

    def _price_of(self, judged: float, of_peer: float, honest: int) -> Array:
        """Compute F from the module docstring for n = ``judged`` and N = ``honest * of_peer``."""
        ratio, offset = self.tolerance.ratio, self.tolerance.offset
        odds = _odds(self.tolerance, honest)
        slope = odds.down * (of_peer * honest)
        # Beyond x = 1 the function only decreases.
        low, high = np.zeros_like(odds.up), np.full_like(odds.up, (1 - offset) / ratio)
        for _ in range(_STEPS):
            p = (low + high) / 2
            rises = ratio * judged * odds.up / (1 + odds.up * (ratio * p + offset)) > slope
            low, high = np.where(rises, p, low), np.where(rises, high, p)
        # The maximum lies between the two ends, so x at the upper end and p at the lower end
        # together give an upper bound.
        x = np.minimum(1.0, ratio * high + offset)
        return np.asarray(judged * np.log1p(odds.up * x) - slope * low)


@lru_cache(maxsize=64)
def _odds(tolerance: Tolerance, honest: int) -> _Odds:
    """Odds of each alternative relative to the nearest point of the null hypothesis, for a node
    with ``honest`` peers that each send as much work as the node."""
    up, down = np.array([_nearest(tolerance, *pair, honest) for pair in ALTERNATIVES]).T
    return _Odds(up - 1, 1 - down, np.log(up), np.log(down))


def _nearest(tolerance: Tolerance, peers: float, node: float, honest: int) -> tuple[float, float]:
    p = np.linspace(1e-6, (1 - tolerance.offset) / tolerance.ratio, 20_001)[:-1]
    x = tolerance.ratio * p + tolerance.offset
    nearest = int(np.argmin(_divergence(node, x) + honest * _divergence(peers, p)))
    up = node * (1 - x[nearest]) / (x[nearest] * (1 - node))
    down = peers * (1 - p[nearest]) / (p[nearest] * (1 - peers))
    # A wide tolerance may cover the alternative; in that case, bet almost nothing.
    return float(max(up, 1.01)), float(min(down, 0.99))


def _divergence(a: float, b: Array) -> Array:
    """Kullback-Leibler divergence between coins with heads probabilities a and b, in nats."""
    return np.asarray(a * np.log(a / b) + (1 - a) * np.log((1 - a) / (1 - b)))
