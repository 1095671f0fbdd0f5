"""The test: could a node with the others' habits have said it this often? And what many tests cost.

**Null hypothesis** for node i and feature f: i's prompts and those of the others it is compared
with were drawn from one population, so that, given how many of them show f, each choice of which
ones do is equally likely. Then the count in i's is hypergeometric and the tail is exact (Fisher).
With shared prompts the counts vary less than that, which keeps the test conservative.

**Many tests.** A node is looked at again and again, and each time thousands of features are. Look k
spends ``alpha / (k (k + 1))`` of the budget, which sums to alpha over any number of looks; it is
divided by the number of features counted in any of the nodes (Bonferroni, at least `FEATURES`) and
by the number of ways in which the others can be chosen. So an honest node that fulfils the null is
*ever* convicted with probability at most alpha.
"""

from __future__ import annotations

from math import comb, log
from typing import Final

# Fewer features are counted as so many.
FEATURES: Final = 1_000


def log_cost(look: int, features: int, others: int, chosen: int) -> float:
    """What has to be added to a log p-value for all the other tests that were made or will be.

    Args:
        look: Number of this look at the node, from 1.
        features: Features counted in any of the nodes.
        others: Nodes to compare with, of which ``chosen`` were; once most and once all of them.
    """
    choices = 2 * comb(others, chosen)
    return log(look * (look + 1)) + log(max(features, FEATURES)) + log(choices)
