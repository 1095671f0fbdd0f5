"""Evidence against each node of a swarm: an e-process over rounds, valid at any time.

`bets` says what one round is worth. Over rounds the bets multiply; evidence that begins at each of
many rounds, with a share of the stake, is added up, so that a node that turns bad late is not
protected by its good past. The worst choice of peers counts: with h of a node's peers honest, the
real e-process is at least what is computed, whichever those are (`honest_peers`).

**Level.** Evidence against an honest node ever reaches c with probability at most 1 / c (Ville). A
node among m is accused at ``m * m * (m + 1) / (3 * alpha)``. Summed over the m nodes and
over every m >= 3 that a growing swarm passes through, that is at most alpha: the chance that *any*
honest node is *ever* accused. With fewer than three nodes nobody can say who is to blame.

Peers of a node are those with work in at least half of its rounds; of more than `MAX_PEERS`, so
many are drawn by a lot that nobody outside knows, or attackers would see to it that they are the
ones. Every node is judged. Who the peers are must not depend on verdicts; each change of them that
is not a growth has a chance of its own, of at most alpha.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np

from grpo_guard.ledger.bets import SHARES, Array, Bets, Tally, Tolerance

# Rounds between the beginnings of evidence: every round would cost four times as much, and a
# node that turns bad between two of them is found at most a few rounds later.
STRIDE = 4
# Rounds that are remembered. Leaving out early beginnings only lowers the evidence.
WINDOW = 256
# Peers that a node is compared with; more would cost memory and find hardly more.
MAX_PEERS = 32
SMALLEST_SWARM = 3
_LOG_SHARES = np.log(SHARES)

Round = Mapping[str, Tally]
_NOTHING = Tally(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What speaks against one node.

    Args:
        log_e: Natural logarithm of its e-value: how often an honest node shows as much is at most
            exp(-log_e).
        peers: Nodes that it was compared with; below 2 there is no evidence and log_e is 0. It is
            0 as well for a node without a rejection.
        others: Nodes with work in at least half of its rounds: its peers were drawn from them.
        rose: Whether the last round added to it.
    """

    log_e: float
    peers: int
    others: int
    rose: bool


def bar(others: int, alpha: float) -> float:
    """The log-evidence at which a node beside so many others is accused; see the module."""
    m = max(others + 1, SMALLEST_SWARM)
    return math.log(m * m * (m + 1) / (3 * alpha))


def honest_peers(peers: int, hostile: float) -> int:
    """How many of a node's peers are taken to be honest: all but a share ``hostile``.

    Unless that is 0, at least one is not: of two peers a third is none, and the spotless work of
    one attacker would get both others of a swarm of three accused.
    """
    return max(1, peers - max(math.floor(peers * hostile + 1e-9), int(hostile > 0)))


@dataclass(slots=True)
class _Account:
    """What has been added up against one node.

    Args:
        peers: That it is compared with.
        next: Number of the first round that is not in it yet.
        ahead: Scores summed from each beginning on, shape [beginnings, peers, G].
    """

    peers: tuple[str, ...]
    next: int
    ahead: Array
    log_e: float = 0.0
    rose: bool = field(default=False)


class Comparison:
    """The rounds of one swarm, compared node by node. Not shared between threads.

    Args:
        tolerance: How far honest nodes may differ.
        hostile: Largest share of a node's peers that may be hostile, in [0, 0.5]: they may send
            spotless work to make it look bad, or as much poison to make it look normal.
        window: Rounds that are remembered.
        salt: Draws the peers where there are more than `MAX_PEERS`; keep it to yourself.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        tolerance: Tolerance | None = None,
        hostile: float = 1 / 3,
        window: int = WINDOW,
        salt: bytes = b"",
    ) -> None:
        if not 0 <= hostile <= 0.5:
            raise ValueError(f"hostile: expected a number in [0, 0.5], got {hostile!r}")
        if isinstance(window, bool) or not isinstance(window, int) or window < 2 * STRIDE:
            raise ValueError(f"window: expected an integer >= {2 * STRIDE}, got {window!r}")
        self.bets = Bets(tolerance or Tolerance())
        self.hostile = hostile
        self.window = window
        self._salt = salt
        self._rounds: list[Round] = []
        self._number = 0  # of the first remembered round
        self._accounts: dict[str, _Account] = {}

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
            for account in self._accounts.values():
                account.ahead = account.ahead[1:]

    def evidence(self) -> dict[str, Evidence]:
        """Evidence after the last round against each node with work in a remembered one."""
        names = sorted({name for tallies in self._rounds for name in tallies})
        rejected = {name for tallies in self._rounds for name, t in tallies.items() if t.held > 0}
        order = sorted(range(len(names)), key=lambda i: self._lot(names[i]))
        at_work = np.array([[n in tallies for n in names] for tallies in self._rounds], dtype=bool)
        found = {}
        for i, name in enumerate(names):
            mine = at_work[at_work[:, i]]
            met = 2 * np.count_nonzero(mine, axis=0) >= len(mine)
            met[i] = False
            drawn = [names[j] for j in order if met[j]][:MAX_PEERS]
            log_e, rose = 0.0, False
            if name in rejected and len(drawn) >= SMALLEST_SWARM - 1:
                account = self._brought_up(name, tuple(sorted(drawn)))
                log_e, rose = account.log_e, account.rose
            found[name] = Evidence(log_e, len(drawn), int(met.sum()), rose)
        for gone in set(self._accounts) - rejected:
            del self._accounts[gone]
        return found

    def _lot(self, name: str) -> bytes:
        return blake2b(
            name.encode("utf-8", "surrogatepass"), key=self._salt, digest_size=8
        ).digest()

    def _brought_up(self, name: str, peers: tuple[str, ...]) -> _Account:
        """The account of one node with the last round in it."""
        account = self._accounts.get(name)
        if account is None or account.peers != peers:
            nothing = np.zeros((0, len(peers), len(SHARES)))
            account = self._accounts[name] = _Account(peers, self._number, nothing)
        honest = honest_peers(len(peers), self.hostile)
        last = self._number + len(self._rounds) - 1
        for number in range(max(account.next, self._number), last + 1):
            tallies = self._rounds[number - self._number]
            mine = tallies.get(name, _NOTHING)
            before = self._log_e(account, honest) if number == last and mine.held else math.inf
            if number % STRIDE == 0:
                begun = np.zeros((1, len(peers), len(SHARES)))
                account.ahead = np.concatenate([account.ahead, begun])
            if mine.judged:
                account.ahead += np.stack(
                    [self.bets.score(mine, tallies.get(p, _NOTHING), honest) for p in peers]
                )
            account.next = number + 1
            if number == last:
                account.log_e = self._log_e(account, honest)
                account.rose = account.log_e > before
        return account

    def _log_e(self, account: _Account, honest: int) -> float:
        """Over all beginnings and bets, each at its worst peers."""
        if not len(account.ahead):
            return -math.inf
        worst = np.sort(account.ahead, axis=1)[:, :honest].sum(axis=1)  # [beginnings, G]
        first = self._number // STRIDE
        begun = np.arange(first, first + len(worst), dtype=np.float64)
        # Stakes 1 / ((b + 1)(b + 2)) add up to 1 over all b >= 0.
        logs = worst - np.log((begun + 1) * (begun + 2))[:, None] + _LOG_SHARES
        top = float(logs.max())
        return top + float(np.log(np.exp(logs - top).sum()))
