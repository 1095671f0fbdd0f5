"""Evidence against each node of a swarm: an e-process over rounds, valid at any time.

`bets` says what one round is worth. Over rounds the bets multiply; evidence that begins at each of
many rounds, with a share of the stake, is added up, so that a node that turns bad late is not
protected by its good past. The worst choice of peers counts: with h of a node's peers honest, the
real e-process is at least what is computed, whichever those are (`honest_peers`).

**Level.** Evidence against an honest node ever reaches c with probability at most 1 / c (Ville). A
node with m - 1 peers is accused at ``m * m * (m + 1) / (3 * alpha)``. Summed over the m nodes and
over every m >= 3 that a growing swarm passes through, that is at most alpha: the chance that *any*
honest node is *ever* accused. With fewer than three nodes nobody can say who is to blame.

Peers of a node are those with work in at least half of its rounds. Who they are must not depend on
verdicts; each change of them that is not a growth has a chance of its own, of at most alpha.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from grpo_guard.ledger.bets import SHARES, Array, Bets, Tally, Tolerance

# Rounds between the beginnings of evidence: every round would cost four times as much, and a
# node that turns bad between two of them is found at most a few rounds later.
STRIDE = 4
# Rounds that are remembered. Leaving out early beginnings only lowers the evidence.
WINDOW = 256
# Nodes that are compared with one another; memory grows with the square.
MAX_COMPARED = 32
SMALLEST_SWARM = 3
_LOG_SHARES = np.log(SHARES)

Round = Mapping[str, Tally]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What speaks against one node.

    Args:
        log_e: Natural logarithm of its e-value: how often an honest node shows as much is at most
            exp(-log_e).
        peers: Nodes that it was compared with; below 2 there is no evidence and log_e is 0.
        rose: Whether the last round added to it.
    """

    log_e: float
    peers: int
    rose: bool


def bar(peers: int, alpha: float) -> float:
    """The log-evidence at which a node with so many peers is accused; see the module."""
    m = max(peers + 1, SMALLEST_SWARM)
    return math.log(m * m * (m + 1) / (3 * alpha))


def honest_peers(peers: int, hostile: float) -> int:
    """How many of a node's peers are taken to be honest: all but a share ``hostile``."""
    return max(1, peers - math.floor(peers * hostile + 1e-9))


class Comparison:
    """The rounds of one swarm, compared node by node. Not shared between threads.

    Args:
        tolerance: How far honest nodes may differ.
        hostile: Largest share of a node's peers that may be hostile, in [0, 0.5]: they may send
            spotless work to make it look bad, or as much poison to make it look normal.
        window: Rounds that are remembered.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self, tolerance: Tolerance | None = None, hostile: float = 1 / 3, window: int = WINDOW
    ) -> None:
        if not 0 <= hostile <= 0.5:
            raise ValueError(f"hostile: expected a number in [0, 0.5], got {hostile!r}")
        if isinstance(window, bool) or not isinstance(window, int) or window < 2 * STRIDE:
            raise ValueError(f"window: expected an integer >= {2 * STRIDE}, got {window!r}")
        self.bets = Bets(tolerance or Tolerance())
        self.hostile = hostile
        self.window = window
        self._rounds: list[Round] = []
        self._number = 0  # of the first remembered round
        self._scores: dict[str, tuple[tuple[str, ...], list[Array]]] = {}

    def begin_at(self, number: int) -> None:
        """Number of the round that is added first: a stake depends on when it is laid.

        Raises:
            ValueError: rounds have been added, or it is no multiple of `STRIDE`.
        """
        if self._rounds or number < 0 or number % STRIDE:
            raise ValueError(f"number: expected a multiple of {STRIDE} and no rounds, got {number}")
        self._number = number

    def add(self, tallies: Round) -> None:
        """One more round, complete."""
        self._rounds.append({name: t for name, t in tallies.items() if t.judged})
        if len(self._rounds) > self.window + STRIDE:
            del self._rounds[:STRIDE]
            self._number += STRIDE
            for _, scores in self._scores.values():
                del scores[:STRIDE]

    def evidence(self) -> dict[str, Evidence]:
        """Evidence after the last round against each node that is compared."""
        compared = self._compared()
        found = {}
        for name in compared:
            peers = self._peers(name, compared)
            if len(peers) < SMALLEST_SWARM - 1:
                found[name] = Evidence(0.0, len(peers), rose=False)
                continue
            scores = np.stack(self._scores_of(name, peers))
            honest = honest_peers(len(peers), self.hostile)
            log_e = self._log_e(scores, honest)
            mine = self._rounds[-1].get(name)
            rose = False
            if mine is not None and mine.held > 0:
                rose = len(scores) < 2 or log_e > self._log_e(scores[:-1], honest)
            found[name] = Evidence(log_e, len(peers), rose)
        for gone in set(self._scores) - set(compared):
            del self._scores[gone]
        return found

    def _compared(self) -> list[str]:
        """The nodes with work in most rounds."""
        present: dict[str, int] = {}
        for tallies in self._rounds:
            for name in tallies:
                present[name] = present.get(name, 0) + 1
        return sorted(sorted(present), key=lambda name: -present[name])[:MAX_COMPARED]

    def _peers(self, name: str, compared: Sequence[str]) -> tuple[str, ...]:
        mine = [tallies for tallies in self._rounds if name in tallies]
        return tuple(
            sorted(
                other
                for other in compared
                if other != name and 2 * sum(other in t for t in mine) >= len(mine)
            )
        )

    def _scores_of(self, name: str, peers: tuple[str, ...]) -> list[Array]:
        """Per round, the scores of the peers, shape [peers, G]."""
        known, scores = self._scores.get(name, ((), []))
        if known != peers:
            scores = []
        honest = honest_peers(len(peers), self.hostile)
        nothing = Tally(0, 0, 0)
        for tallies in self._rounds[len(scores) :]:
            mine = tallies.get(name, nothing)
            scores.append(
                np.stack([self.bets.score(mine, tallies.get(p, nothing), honest) for p in peers])
            )
        self._scores[name] = (peers, scores)
        return scores

    def _log_e(self, scores: Array, honest: int) -> float:
        """Of scores [rounds, peers, G]: all beginnings and bets, each at its worst peers."""
        ahead = np.cumsum(scores[::-1], axis=0)[::-1][::STRIDE]  # from each beginning to the end
        worst = np.sort(ahead, axis=1)[:, :honest].sum(axis=1)  # [beginnings, G]
        first = self._number // STRIDE
        begun = np.arange(first, first + len(worst), dtype=np.float64)
        # Stakes 1 / ((b + 1)(b + 2)) add up to 1 over all b >= 0.
        logs = worst - np.log((begun + 1) * (begun + 2))[:, None] + _LOG_SHARES
        top = float(logs.max())
        return top + float(np.log(np.exp(logs - top).sum()))
