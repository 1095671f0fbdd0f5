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
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b

import numpy as np

from grpo_guard.nodes.bets import SHARES, Array, Bets, Tally, Tolerance

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
        self._salt = salt
        self._rounds: list[Round] = []
        self._number = 0  # of the first remembered round
        self._accounts: dict[str, _Account] = {}
        # Kept up round by round, for the names of remembered rounds. Names cost nothing, so a
        # round must not cost as much as there are names: the rounds that each worked in, a bit
        # for each; the names by how many those are; rounds with a rejection; and the lots.
        self._at_work: dict[str, int] = {}
        self._by_count: defaultdict[int, set[str]] = defaultdict(set)
        self._rejected: Counter[str] = Counter()
        self._lots: dict[str, bytes] = {}

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
        if len(self._rounds) == self.window + STRIDE:
            for k in range(STRIDE):
                self._note(self._number + k, self._rounds[k], leaves=True)
            del self._rounds[:STRIDE]
            self._number += STRIDE
        self._rounds.append({name: t for name, t in tallies.items() if t.judged})
        self._note(self._number + len(self._rounds) - 1, self._rounds[-1], leaves=False)

    def evidence(self) -> dict[str, Evidence]:
        """Evidence after the last round against each node with work in it.

        Against a node that is away nothing is added, so there is nothing to say of it.
        """
        found = {}
        known: dict[int, list[str]] = {}
        for name in self._rounds[-1] if self._rounds else ():
            at_work = self._at_work[name]
            if at_work not in known:
                known[at_work] = self._met(name)
            met = known[at_work]  # itself among them
            drawn = [other for other in met[: MAX_PEERS + 1] if other != name][:MAX_PEERS]
            log_e, rose = 0.0, False
            if self._rejected[name] and len(drawn) >= SMALLEST_SWARM - 1:
                account = self._brought_up(name, tuple(sorted(drawn)))
                log_e, rose = account.log_e, account.rose
            found[name] = Evidence(log_e, len(drawn), len(met) - 1, rose)
        return found

    def _note(self, number: int, tallies: Round, *, leaves: bool) -> None:
        """A round comes, or is forgotten."""
        bit = 1 << number % (self.window + STRIDE)
        for name, tally in tallies.items():
            before = self._at_work.get(name, 0)
            now = self._at_work[name] = before ^ bit
            self._by_count[before.bit_count()].discard(name)
            self._by_count[now.bit_count()].add(name)
            if tally.held > 0:
                self._rejected[name] += -1 if leaves else 1
            if not now:
                self._by_count[0].discard(name)
                del self._at_work[name]
                self._lots.pop(name, None)
            if not self._rejected[name]:
                del self._rejected[name]
                self._accounts.pop(name, None)

    def _met(self, name: str) -> list[str]:
        """Nodes with work in at least half of this one's rounds, by lot; itself among them."""
        mine = self._at_work[name]
        rounds = [tallies for tallies in self._rounds if name in tallies]
        # Either list holds them all. Whoever invents names can make one of the two long: those
        # that worked as often are many for a new name, those of its rounds for an old one.
        often = [names for n, names in self._by_count.items() if 2 * n >= len(rounds)]
        few = sum(map(len, often)) < sum(map(len, rounds))
        met = [
            other
            for other in set[str]().union(*(often if few else rounds))
            if 2 * (self._at_work[other] & mine).bit_count() >= len(rounds)
        ]
        return sorted(met, key=lambda other: (self._lot(other), other))

    def _lot(self, name: str) -> bytes:
        if name not in self._lots:
            data = name.encode("utf-8", "surrogatepass")
            self._lots[name] = blake2b(data, key=self._salt, digest_size=8).digest()
        return self._lots[name]

    def _brought_up(self, name: str, peers: tuple[str, ...]) -> _Account:
        """The account of one node with the last round in it."""
        account = self._accounts.get(name)
        if account is None or account.peers != peers:
            nothing = np.zeros((0, len(peers), len(SHARES)))
            account = self._accounts[name] = _Account(peers, self._number, [], nothing)
        gone = sum(end < self._number // STRIDE for end in account.ends)
        account.ends, account.ahead = account.ends[gone:], account.ahead[gone:]
        honest = honest_peers(len(peers), self.hostile)
        last = self._number + len(self._rounds) - 1
        for number in range(max(account.next, self._number), last + 1):
            tallies = self._rounds[number - self._number]
            mine = tallies.get(name)
            if mine is None:
                continue
            before = math.inf
            if number == last and mine.held:
                before = self._log_e(account, honest, (number - 1) // STRIDE)
            if not account.ends or account.ends[-1] < number // STRIDE:
                begun = np.zeros((1, len(peers), len(SHARES)))
                account.ahead = np.concatenate([account.ahead, begun])
                account.ends.append(number // STRIDE)
            account.ahead += self.bets.scores(
                mine, [tallies.get(peer, _NOTHING) for peer in peers], honest
            )
            if number == last:
                account.log_e = self._log_e(account, honest, number // STRIDE)
                account.rose = account.log_e > before
        account.next = last + 1
        return account

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
