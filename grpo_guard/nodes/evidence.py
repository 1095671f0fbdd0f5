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
from functools import lru_cache

import numpy as np

from grpo_guard.nodes.bets import SHARES, Array, Bets, Tally, Tolerance
from grpo_guard.nodes.history import History

# Rounds between the beginnings of evidence: every round would cost four times as much, and a
# node that turns bad between two of them is found at most a few rounds later.
STRIDE = 4
# Rounds that are remembered. Leaving out early beginnings only lowers the evidence.
WINDOW = 256
# Peers that a node is compared with; more would cost memory and find hardly more.
MAX_PEERS = 32
SMALLEST_SWARM = 3
# Nodes with rejections whose sums are kept from round to round, up to 130 kB each. Where there are
# more, the sums are made of the remembered rounds when a node is rejected.
MAX_ACCOUNTS = 1024
_REMEMBERED_SCORES = 50_000
_LOG_SHARES = np.log(SHARES)

Round = Mapping[str, Tally]


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

    Beginnings of evidence between which the node did no work have equal sums: they share a row.
    So a name that is used once takes one row, not one for each beginning.

    Args:
        peers: That it is compared with.
        next: Number of the first round that is not in it yet.
        ends: For each row the last beginning that it stands for, rising; nothing speaks against
            the node from later beginnings on.
        ahead: Scores summed from the beginnings on, shape [rows, peers, G].
    """

    peers: tuple[str, ...]
    next: int
    ends: list[int]
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
        self._history = History(window + STRIDE, MAX_PEERS + 1, salt)
        self._number = self._next = 0  # of the first remembered round, and of the one to come
        self._last: tuple[str, ...] = ()
        self._accounts: dict[str, _Account] = {}
        self._scores: dict[tuple[Tally, Tally, int], Array] = {}
        self._shown: dict[str, float] = {}

    def begin_at(self, number: int) -> None:
        """Number of the round that is added first: a stake depends on when it is laid.

        Raises:
            ValueError: rounds have been added, or it is no multiple of `STRIDE`.
        """
        if self._next != self._number or number < 0 or number % STRIDE:
            raise ValueError(f"number: expected a multiple of {STRIDE} and no rounds, got {number}")
        self._number = self._next = number

    def add(self, tallies: Round) -> None:
        """One more round, complete."""
        if self._next - self._number == self.window + STRIDE:
            for number in range(self._number, self._number + STRIDE):
                self._history.forget(number)
            self._number += STRIDE
            known = self._history.is_rejected
            self._accounts = {n: a for n, a in self._accounts.items() if known(n)}
            self._shown = {n: e for n, e in self._shown.items() if known(n)}
        at_work = {name: t for name, t in tallies.items() if t.judged}
        self._history.add(self._next, at_work)
        self._last = tuple(at_work)
        self._next += 1

    def evidence(self) -> dict[str, Evidence]:
        """Evidence after the last round against each node with work in it.

        Against a node that is away nothing is added, so there is nothing to say of it.
        """
        found = {}
        few = self._history.rejected_names <= MAX_ACCOUNTS
        if not few:
            self._accounts.clear()
        for name in self._last:
            met, count = self._history.met(name)
            drawn = [other for other in met if other != name][:MAX_PEERS]
            log_e, rose = 0.0, False
            if len(drawn) >= SMALLEST_SWARM - 1 and self._history.is_rejected(name):
                # Only a rejection makes evidence rise: of many nodes the others' is as it was.
                if few or self._history.tally(name, self._next - 1).held:
                    account = self._brought_up(name, tuple(sorted(drawn)))
                    log_e, rose = account.log_e, account.rose
                    if few:
                        self._accounts[name] = account
                    self._shown[name] = log_e
                else:
                    log_e = self._shown.get(name, 0.0)
            found[name] = Evidence(log_e, len(drawn), count - 1, rose)
        return found

    def _brought_up(self, name: str, peers: tuple[str, ...]) -> _Account:
        """The account of one node with the last round in it."""
        last = self._next - 1
        account = self._accounts.get(name)
        if account is None or account.peers != peers or self._worked(name, account.next, last):
            account = self._opened(name, peers, last)
        gone = sum(end < self._number // STRIDE for end in account.ends)
        account.ends, account.ahead = account.ends[gone:], account.ahead[gone:]
        honest = honest_peers(len(peers), self.hostile)
        mine = self._history.tally(name, last)
        before = self._log_e(account, honest, (last - 1) // STRIDE) if mine.held else math.inf
        if not account.ends or account.ends[-1] < last // STRIDE:
            begun = np.zeros((1, len(peers), len(SHARES)))
            account.ahead = np.concatenate([account.ahead, begun])
            account.ends.append(last // STRIDE)
        theirs = [self._history.tally(peer, last) for peer in peers]
        account.ahead += self.bets.scores(mine, theirs, honest)
        account.log_e = self._log_e(account, honest, last // STRIDE)
        account.rose = account.log_e > before
        account.next = last + 1
        return account

    def _worked(self, name: str, first: int, end: int) -> bool:
        """Whether a node worked in a remembered round from ``first`` on, before ``end``."""
        numbers = range(max(first, self._number), end)
        return any(self._history.tally(name, number).judged for number in numbers)

    def _opened(self, name: str, peers: tuple[str, ...], end: int) -> _Account:
        """An account with all remembered rounds before ``end``."""
        nothing = _Account(peers, end, [], np.zeros((0, len(peers), len(SHARES))))
        numbers, codes, tallies = self._history.rows(name, peers, range(self._number, end))
        if not len(numbers):
            return nothing
        honest = honest_peers(len(peers), self.hostile)
        # Few pairs of counts occur: each is scored once.
        pairs, which = np.unique(codes[0] * len(tallies) + codes[1:], return_inverse=True)
        scores = np.array(
            [self._score(tallies[p // len(tallies)], tallies[p % len(tallies)], honest)
             for p in pairs.tolist()]
        )  # fmt: skip
        of_rounds = scores[which.reshape(codes[1:].shape)].transpose(1, 0, 2)
        ends, row = np.unique(numbers // STRIDE, return_inverse=True)
        ahead = np.zeros((len(ends), len(peers), len(SHARES)))
        for k, of_round in enumerate(of_rounds):  # in this order: to the bit what a kept one has
            ahead[: row[k] + 1] += of_round
        return _Account(peers, end, ends.tolist(), ahead)

    def _score(self, mine: Tally, peer: Tally, honest: int) -> Array:
        key = (mine, peer, honest)
        if key not in self._scores:
            if len(self._scores) >= _REMEMBERED_SCORES:
                self._scores.clear()
            self._scores[key] = self.bets.score(mine, peer, honest)
        return self._scores[key]

    def _log_e(self, account: _Account, honest: int, last: int) -> float:
        """Over all beginnings up to ``last`` and bets, each at its worst peers."""
        first = self._number // STRIDE
        if last < first:
            return -math.inf
        worst = np.zeros((len(account.ends) + 1, len(SHARES)))
        worst[:-1] = np.sort(account.ahead, axis=1)[:, :honest].sum(axis=1)
        worst = np.repeat(worst, np.diff([first - 1, *account.ends, last]), axis=0)
        logs = worst - _log_stakes(first, last) + _LOG_SHARES
        top = float(logs.max())
        return top + float(np.log(np.exp(logs - top).sum()))


@lru_cache(maxsize=4)
def _log_stakes(first: int, last: int) -> Array:
    """Stakes 1 / ((b + 1)(b + 2)) add up to 1 over all beginnings b >= 0; shape [b, 1]."""
    begun = np.arange(first, last + 1, dtype=np.float64)
    return np.asarray(np.log((begun + 1) * (begun + 2))[:, None])
