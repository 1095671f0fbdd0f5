"""Evidence from one prompt against each node that answered it, by comparing the answers.

Prompts differ in difficulty, and models in what they find difficult, so nodes are compared within a
prompt and never across prompts.

**Draw.** For one prompt, draw one answer from each node. Let b_i be 1 if the answer of node i has
the finding, and B the sum of b over node i and a set S of its peers. What follows does not depend
on which answer is drawn, so it depends neither on how many answers a node sent nor on how similar
they are.

**Null hypothesis** for node i. Given how difficult the prompt is, the b are independent, and the
odds of b_i = 1 are at most ``odds`` times those of each honest peer. These odds include the node's
own luck with the prompt: an honest model may get one prompt wrong in every answer, and its peer the
next. Given B, b_i is then a draw from Fisher's noncentral hypergeometric distribution::

    P(b_i = 1 | B) <= q(B) = odds B / (odds B + |S| + 1 - B)

**Bet.** With L > 1, the likelihood ratio of odds L times as large::

    E = L^b_i / (1 + (L - 1) q(B))

has a mean of at most 1 under the null, because E rises with b_i. So has its mean over all draws,
and this mean is what is computed: nothing is drawn at random. The totals can be anything, so
nothing is assumed about difficulty; a prompt on which no node or every node has the finding is no
evidence.

**Peers.** S must be honest, but which peers are honest is unknown. E falls as a peer has the
finding more often. So if m nodes answered, E is smallest, over all sets of m // 2 peers, for the
peers that have the finding most often. If fewer than half of the m nodes are malicious, some such
set is honest, and the smallest value is no more than the E of that set. This also leaves out peers
that avoid the finding on purpose, the cheap way to make an honest node look bad.

Sources: Grünwald, de Heide and Koolen, Safe Testing (arXiv 1906.07801), for conditional e-values.
"""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import numpy as np

FEWEST_NODES: Final = 3
"""Minimum number of nodes to compare: if only two nodes differ, it is unclear which is honest."""
BET: Final = 8.0
"""L from the module docstring. If 50 % of a node's answers and 5 % of its peers' have the finding,
the growth per prompt is within a fifth of the growth for the best L, both with one answer per node
and with eight."""


def log_e_values(shares: Mapping[str, float], odds: float) -> dict[str, float]:
    """Return the logarithm of an e-value against each node; empty if too few nodes answered.

    ``shares`` gives, for each node, the share of its answers to one prompt that have the finding;
    ``odds`` is the maximum ratio of an honest node's odds of the finding to those of its honest
    peers, >= 1.
    """
    if len(shares) < FEWEST_NODES:
        return {}
    ordered = sorted(shares.values(), reverse=True)
    kept = len(shares) // 2
    by_share = {}
    for share in set(ordered):
        place = min(ordered.index(share), kept)  # later ones are compared with the first ``kept``
        worst = (*ordered[:place], *ordered[place + 1 : kept + 1])
        by_share[share] = _log_e(share, worst, odds)
    return {node: by_share[share] for node, share in shares.items()}


@lru_cache(maxsize=1024)
def _log_e(share: float, peers: tuple[float, ...], odds: float) -> float:
    """Logarithm of the mean of E over all draws, for a node's share and its peers' shares."""
    if not share and not any(peers):
        return 0.0
    of_peers = np.ones(1)  # probability of each sum over the peers
    for peer in peers:
        of_peers = np.convolve(of_peers, (1 - peer, peer))
    mean = 0.0
    for own, chance in ((0, 1 - share), (1, share)):
        having = own + np.arange(len(peers) + 1)
        q = odds * having / (odds * having + len(peers) + 1 - having)
        mean += chance * float((of_peers * BET**own / (1 + (BET - 1) * q)).sum())
    return math.log(mean)
