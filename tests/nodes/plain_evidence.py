"""The evidence as defined in `grpo_guard.nodes.evidence`, from all rounds and all names.

This is what the ledger computed before its cost became independent of the number of names; the
answers must be the same.
"""

import math
from hashlib import blake2b

import numpy as np

from grpo_guard.nodes.bets import WEIGHTS, Tally
from grpo_guard.nodes.evidence import MAX_PEERS, STRIDE, Comparison, Evidence, honest_peers


class PlainComparison(Comparison):
    """Keeps nothing but the rounds."""

    def __init__(self, *arguments, salt=b"", **options):
        super().__init__(*arguments, salt=salt, **options)
        self._salt, self._rounds = salt, []

    def begin_at(self, number):
        self._number = number

    def add(self, tallies):
        self._rounds.append({name: t for name, t in tallies.items() if t.judged})
        if len(self._rounds) > self.window + STRIDE:
            del self._rounds[:STRIDE]
            self._number += STRIDE

    def evidence(self):
        names = sorted({name for tallies in self._rounds for name in tallies})
        order = sorted(range(len(names)), key=lambda i: self._draw(names[i]))
        at_work = np.array([[n in tallies for n in names] for tallies in self._rounds], dtype=bool)
        found = {}
        for i, name in enumerate(names):
            mine = at_work[at_work[:, i]]
            met = 2 * np.count_nonzero(mine, axis=0) >= len(mine)
            met[i] = False
            peers = sorted([names[j] for j in order if met[j]][:MAX_PEERS])
            log_e, rose = 0.0, False
            if len(peers) >= 2 and any(t[name].held > 0 for t in self._rounds if name in t):
                log_e, rose = self._against(name, peers)
            found[name] = Evidence(log_e, len(peers), int(met.sum()), rose)
        return found

    def _draw(self, name):
        return blake2b(name.encode(), key=self._salt, digest_size=8).digest()

    def _against(self, name, peers):
        honest, nothing = honest_peers(len(peers), self.hostile), Tally(0, 0, 0)
        ahead = np.zeros((0, len(peers), len(WEIGHTS)))
        before = math.inf
        for k, tallies in enumerate(self._rounds):
            mine, last = tallies.get(name, nothing), k == len(self._rounds) - 1
            before = self._sum(ahead, honest) if last and mine.held else math.inf
            if (self._number + k) % STRIDE == 0:
                ahead = np.concatenate([ahead, np.zeros((1, len(peers), len(WEIGHTS)))])
            if mine.judged:
                scores = [self.bets.score(mine, tallies.get(p, nothing), honest) for p in peers]
                ahead = ahead + np.stack(scores)
        log_e = self._sum(ahead, honest)
        return log_e, log_e > before

    def _sum(self, ahead, honest):
        if not len(ahead):
            return -math.inf
        worst = np.sort(ahead, axis=1)[:, :honest].sum(axis=1)
        begun = self._number // STRIDE + np.arange(len(worst))
        logs = worst - np.log((begun + 1.0) * (begun + 2.0))[:, None] + np.log(WEIGHTS)
        return logs.max() + math.log(np.exp(logs - logs.max()).sum())
