"""Evidence against each node of a swarm: an e-process over rounds, valid at any time.

`bets` gives the e-value of one round. Bets multiply over rounds. Evidence starts anew at many
rounds, each start with a share of the stake (`e_process`), and is summed over the starts, so that a
good record does not protect a node that turns bad late. The worst choice of peers counts: if any h
of a node's peers are honest, the real e-process is at least the computed value (`honest_peers`).

**Level.** The chance that the evidence against an honest node ever reaches c is at most 1 / c
(Ville). A node among m is accused at ``m * m * (m + 1) / (3 * alpha)``. Summed over the m nodes and
over every m >= 3 that a growing swarm passes through, that is at most alpha: the chance that *any*
honest node is *ever* accused. With fewer than three nodes it is unclear which node is to blame.

A node's peers are the nodes with work in at least half of its rounds. If there are more than
`MAX_PEERS`, that many are drawn by secret lot; otherwise attackers would make sure that their own
nodes are drawn. Every node is judged. The choice of peers must not depend on verdicts; each change
of peers other than growth adds a chance of at most alpha.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from grpo_guard.core.arguments import require_count
from grpo_guard.nodes.bets import WEIGHTS, Array, Bets, Tally, Tolerance
from grpo_guard.nodes.e_process import log_shares, log_threshold
from grpo_guard.nodes.history import History

# Rounds between the starts of evidence: a start at every round would cost four times as much, and
# a node that turns bad between two starts is found at most a few rounds later.
STRIDE = 4
# Number of rounds remembered. Leaving out early starts only lowers the evidence.
WINDOW = 256
# Maximum number of peers that a node is compared with. More peers would cost memory and catch
# hardly any more attackers.
MAX_PEERS = 32
SMALLEST_SWARM = 3
# Maximum number of nodes with rejections whose sums are kept from round to round, up to 130 kB
# each. If there are more, a node's sums are recomputed from the remembered rounds when it is
# rejected.
MAX_ACCOUNTS = 1024
_REMEMBERED_SCORES = 50_000
_LOG_WEIGHTS = np.log(WEIGHTS)

Round = Mapping[str, Tally]


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence against one node.

    Args:
        log_e: Natural logarithm of the node's e-value: an honest node reaches this value with
            probability at most exp(-log_e). 0 without a rejection, or with fewer than two peers.
        peers: Number of peers that the node was compared with.
        others: Number of other nodes with work in at least half of the node's rounds, from which
            its peers were drawn.
        rose: Whether the last round added to the evidence.
    """

    log_e: float
    peers: int
    others: int
    rose: bool


def threshold(others: int, alpha: float) -> float:
    """Return the log e-value at which a node among ``others`` other nodes is accused; see the
    module docstring."""
    m = max(others + 1, SMALLEST_SWARM)
    return log_threshold(alpha, m * m * (m + 1) / 3)


def honest_peers(peers: int, hostile: float) -> int:
    """Return how many of a node's peers are assumed to be honest: all but a share ``hostile``.

    Unless ``hostile`` is 0, at least one peer is assumed to be hostile. Otherwise, because a third
    of two peers rounds down to 0, one attacker's spotless work would get both other nodes in a
    swarm of three accused.
    """
    return max(1, peers - max(math.floor(peers * hostile + 1e-9), int(hostile > 0)))


@dataclass(slots=True)
class _Account:
    """The running sums of the evidence against one node.

    Starts between which the node did no work have equal sums and share a row, so a name that is
    used once takes one row. ``ends`` holds the last start that each row covers, ascending;
    ``ahead`` holds the scores summed from the starts onwards, [rows, peers, G]; ``next`` is the
    first round not included yet.
    """

    peers: tuple[str, ...]
    next: int
    ends: list[int]
    ahead: Array
    log_e: float = 0.0
    rose: bool = field(default=False)


class Comparison:
    """Compares the nodes of one swarm over its rounds. Not safe to share between threads. Raises
    ValueError if an argument is out of range.

    Args:
        tolerance: How far honest nodes may differ.
        hostile: Maximum share of a node's peers that may be hostile, in [0, 0.5]. Hostile peers may
            send spotless work to make the node look bad, or just as much poison to make it look
            normal.
        window: Number of rounds remembered.
        salt: Seed for the draw of peers if there are more than `MAX_PEERS`; keep it secret.
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
        require_count("window", window, least=2 * STRIDE)
        self.bets = Bets(tolerance or Tolerance())
        self.hostile = hostile
        self.window = window
        self._history = History(window + STRIDE, MAX_PEERS + 1, salt)
        self._number = self._next = 0  # numbers of the first remembered round and of the next round
        self._last: tuple[str, ...] = ()
        self._accounts: dict[str, _Account] = {}
        self._score = lru_cache(_REMEMBERED_SCORES)(self.bets.score)
        self._shown: dict[str, float] = {}

    def begin_at(self, number: int) -> None:
        """Set the number of the first round, a multiple of `STRIDE`: a stake depends on the round
        it is placed in. Raises ValueError once rounds have been added."""
        if self._next != self._number or number < 0 or number % STRIDE:
            raise ValueError(f"number: expected a multiple of {STRIDE} and no rounds, got {number}")
        self._number = self._next = number

    def add(self, tallies: Round) -> None:
        """Add one more complete round."""
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
        """Return the evidence after the last round against each node with work in that round.

        Absent nodes are left out, because the evidence against them does not change.
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
                # Only a rejection raises evidence: with many nodes, the rest keep their old value.
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
        """Return the account of one node, brought up to date with the last round."""
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
            begun = np.zeros((1, len(peers), len(WEIGHTS)))
            account.ahead = np.concatenate([account.ahead, begun])
            account.ends.append(last // STRIDE)
        theirs = [self._history.tally(peer, last) for peer in peers]
        account.ahead += self.bets.scores(mine, theirs, honest)
        account.log_e = self._log_e(account, honest, last // STRIDE)
        account.rose = account.log_e > before
        account.next = last + 1
        return account

    def _worked(self, name: str, first: int, end: int) -> bool:
        """Whether a node worked in any remembered round from ``first`` on and before ``end``."""
        numbers = range(max(first, self._number), end)
        return any(self._history.tally(name, number).judged for number in numbers)

    def _opened(self, name: str, peers: tuple[str, ...], end: int) -> _Account:
        """Build a node's account from all remembered rounds before ``end``."""
        nothing = _Account(peers, end, [], np.zeros((0, len(peers), len(WEIGHTS))))
        numbers, codes, tallies = self._history.rows(name, peers, range(self._number, end))
        if not len(numbers):
            return nothing
        honest = honest_peers(len(peers), self.hostile)
        # Few distinct pairs of counts occur, so each is scored once.
        pairs, which = np.unique(codes[0] * len(tallies) + codes[1:], return_inverse=True)
        scores = np.array(
            [self._score(tallies[p // len(tallies)], tallies[p % len(tallies)], honest)
             for p in pairs.tolist()]
        )  # fmt: skip
        of_rounds = scores[which.reshape(codes[1:].shape)].transpose(1, 0, 2)
        ends, row = np.unique(numbers // STRIDE, return_inverse=True)
        ahead = np.zeros((len(ends), len(peers), len(WEIGHTS)))
        for k, of_round in enumerate(of_rounds):  # in order: matches a kept account exactly
            ahead[: row[k] + 1] += of_round
        return _Account(peers, end, ends.tolist(), ahead)

    def _log_e(self, account: _Account, honest: int, last: int) -> float:
        """Log e-value over all starts up to ``last`` and all bets, each with its worst peers."""
        first = self._number // STRIDE
        if last < first:
            return -math.inf
        worst = np.zeros((len(account.ends) + 1, len(WEIGHTS)))
        worst[:-1] = np.sort(account.ahead, axis=1)[:, :honest].sum(axis=1)
        worst = np.repeat(worst, np.diff([first - 1, *account.ends, last]), axis=0)
        logs = worst + _log_stakes(first, last) + _LOG_WEIGHTS
        top = float(logs.max())
        return top + float(np.log(np.exp(logs - top).sum()))


@lru_cache(maxsize=4)
def _log_stakes(first: int, last: int) -> Array:
    """Log stakes of the starts from ``first`` to ``last``; shape [starts, 1]."""
    return log_shares(np.arange(first, last + 1))[:, None]
