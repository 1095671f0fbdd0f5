"""Exact probabilities that a spot check finds poison, per round.

A node sends n completions, m of them poisoned. Of these n, k are drawn without replacement, with
every set of k equally likely. Each poisoned completion that is drawn is rejected with probability
d, independently of the others. The number X of poisoned completions drawn is hypergeometric, and

    P(caught in a round) = 1 - E[(1 - d)^X] = 1 - sum_x C(m, x) C(n - m, k - x) / C(n, k) (1 - d)^x

If each completion were drawn independently with probability p, this probability would be
1 - (1 - p d)^m, which is lower: a fixed number of draws cannot miss everything by drawing too few.
"""

import math
from dataclasses import dataclass
from typing import Final

from grpo_guard.core.arguments import require_share
from grpo_guard.nodes.fisher import log_choose

_SLACK: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Odds:
    """What an operator can expect from a node that sends the same mix of completions every round.

    Args:
        sent, poisoned, checked: Number of completions per round, and how many of them are poisoned
            or checked.
        power: Probability that a checked poisoned completion is rejected.
        caught: Probability of at least one rejection in a round, after which all are checked.
        rounds: Expected number of rounds up to and including the first rejection; inf if none ever
            occurs.
        earned: Expected number of poisoned completions that earn a reward in these rounds. In the
            last round each is rejected with probability ``power``. inf if poison is never rejected.
    """

    sent: int
    poisoned: int
    checked: int
    power: float
    caught: float
    rounds: float
    earned: float


def checked_of(sent: int, share: float) -> int:
    """The number of a node's completions that `SpotCheck` draws."""
    return min(sent, math.ceil(share * sent - _SLACK))


def odds(sent: int, poisoned: int, share: float, power: float = 1.0) -> Odds:
    """Compute the odds for one node; raises ValueError if an argument is out of range."""
    if not 1 <= sent <= 10**6:
        raise ValueError(f"sent: expected 1 to 1,000,000 completions, got {sent!r}")
    if not 0 <= poisoned <= sent:
        raise ValueError(f"poisoned: expected 0 to sent ({sent}), got {poisoned!r}")
    require_share("share", share)
    if not 0 <= power <= 1:
        raise ValueError(f"power: expected a number in [0, 1], got {power!r}")
    checked = checked_of(sent, share)
    caught = earned = 0.0
    for drawn, chance in _weights(sent, poisoned, checked):
        missed = (1 - power) ** drawn
        caught += chance * (1 - missed)
        # A missed round pays all m poisoned completions. A caught round pays those that pass the
        # full check: (1 - d) m unconditionally, minus the share from missed rounds. Together:
        earned += chance * (poisoned * (1 - power) + missed * (poisoned - drawn) * power)
    if not caught:
        return Odds(sent, poisoned, checked, power, 0.0, math.inf, math.inf if poisoned else 0.0)
    # Rounds are alike until the first catch, so each sum is a round's mean over ``caught``.
    return Odds(sent, poisoned, checked, power, min(caught, 1.0), 1 / caught, earned / caught)


def _weights(sent: int, poisoned: int, checked: int) -> list[tuple[int, float]]:
    """(x, P(X = x)) of the hypergeometric distribution."""
    whole = log_choose(sent, checked)
    span = range(max(0, checked - (sent - poisoned)), min(poisoned, checked) + 1)
    return [
        (x, math.exp(log_choose(poisoned, x) + log_choose(sent - poisoned, checked - x) - whole))
        for x in span
    ]
