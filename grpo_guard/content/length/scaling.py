"""Multiplicative length scaling: what takes the reward out of length where nothing is certain.

A factor, as in Group Relative Reward Rescaling (GR3, arXiv 2603.10535): an additive penalty can be
traded against the reward, a factor cannot. GR3 scales every completion by its group. Here that is
an option (``tolerance``), since it costs honest work: no completion shows whether it is padded or
thorough, and honest answers of one question differ by half in length.

What can be told is a node. One whose paid answers are longer than most other nodes' answers to the
same prompts, by more than its unpaid answers are, again and again, chooses its length for the
reward (`UsualLengths`). A model that thinks at length does not: it is long when it is wrong, too.
Only the work of such nodes is scaled. For them the factor is 1 up to the middle of the other nodes'
lengths, and falls steeply beyond it, as a power that the group's spread sets, down to 0.

Whatever is scaled is measured by two other nodes at least, of which more than half must write
shorter (`Comparison`). So nothing is scaled where nodes have no names, or each answers prompts of
its own.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grpo_guard.completion import Completion
from grpo_guard.content.length.compare import Comparison, Excess
from grpo_guard.content.length.groups import Member, RewardOf
from grpo_guard.nodes.usual_lengths import Paid, Usual, UsualLengths
from grpo_guard.prompts import prompt_key
from grpo_guard.turns import own_words

_NOTHING = Usual()
# Less than this is nothing. A trainer that divides by a group's deviation would make a whole
# advantage of the smallest reward in a group where nothing else earns, as where the question is too
# hard for everybody but an attacker who knows the answer.
_LEAST = 0.01
# A node that is longer when it is paid has this many times the strength: what is a third of a
# deviation too long is to leave its group. Less would keep it there as a loser, and a right answer
# that loses teaches to be wrong.
_CHOSEN = 4.0


@dataclass(frozen=True, slots=True)
class LengthScaling:
    """Scales rewards by length: of nodes that choose their length for the reward.

    Apply it to the rewards *after* the verdicts' veto and before the trainer computes advantages.
    ``Completion.node`` has to be the sender's known identity.

    Args:
        tolerance: Standard deviations above the middle of the other nodes' lengths that cost any
            completion nothing, >= 0; beyond it honest work is scaled, too (figures:
            docs/content-verifiers.md). None: only nodes that choose their length are scaled.
        strength: ``factor = exp(-strength * (z - tolerance))`` for z standard deviations above the
            middle, at most 1; that is, a power of the ratio of lengths. 0 = nothing is scaled.
        reward_of: Reward of a completion, which says what was paid; None = by the ``reference``
            that most nodes of the prompt give. Without either nothing is learnt of nodes.
        wanted_peers: How many equals from other nodes make a comparison; else all others do, and
            with fewer of them than this nothing is scaled.
        past: What is known of nodes; True = a `UsualLengths` of its own. None or False: no node is
            told from the others, and ``tolerance`` alone scales.

    Raises:
        ValueError: an argument is out of range, or nothing could ever be scaled.

    Example:
        >>> rewards = guard.apply(rewards, completions)
        >>> rewards = LengthScaling().apply(rewards, completions)
    """

    tolerance: float | None = None
    strength: float = 4.0
    reward_of: RewardOf | None = None
    wanted_peers: int = 3
    past: UsualLengths | bool | None = True

    def __post_init__(self) -> None:
        for name in ("tolerance", "strength"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ValueError(f"LengthScaling.{name}: expected a number >= 0, got {value!r}")
        if self.tolerance is None and not self.past:
            raise ValueError("LengthScaling: expected a tolerance or past=True, got neither")
        # A file can only say yes or no.
        object.__setattr__(self, "past", UsualLengths() if self.past is True else self.past or None)

    def factors(self, batch: Sequence[Completion]) -> list[float]:
        """One factor in [0, 1] per completion, in order; 1 where there is nothing to compare.

        With ``past`` the batch is remembered, and what chooses its length is known from earlier
        batches.
        """
        batch = own_words(batch)  # a tool's page is nobody's padding
        past = self.past if isinstance(self.past, UsualLengths) else None
        measured = self._measured(batch)
        known: Mapping[str, Usual] = {}
        chosen = frozenset[str]()
        if past is not None:
            known, chosen = past.known(), past.longer_when_paid()
            _remember(past, batch, measured)
        factors = [1.0] * len(batch)
        for member, excess in measured:
            usual = known.get(member.node or "", _NOTHING)
            beyond = max(excess.log_ratio - usual.excess, 0.0) / excess.spread
            if member.node in chosen:
                factors[member.index] = _scaled(_CHOSEN * self.strength * beyond)
            elif self.tolerance is not None:
                factors[member.index] = _scaled(self.strength * max(beyond - self.tolerance, 0.0))
        return factors

    def _measured(self, batch: Sequence[Completion]) -> list[tuple[Member, Excess]]:
        comparison = Comparison(batch, self.reward_of, self.wanted_peers)
        found = [(m, comparison.of(m, group)) for group in comparison.groups for m in group]
        # One or two say nothing: senders of two words would take the reward of the right answer
        # next to them.
        return [
            (member, excess)
            for member, excess in found
            if excess is not None and excess.peers >= self.wanted_peers
        ]

    def apply(
        self, rewards: Sequence[float | None], batch: Sequence[Completion]
    ) -> list[float | None]:
        """The rewards times their factors.

        None stays None, NaN stays NaN, and a reward of 0 or below stays as it is: scaled towards 0,
        a penalty would shrink with every word.

        Raises:
            ValueError: not one reward per completion.
        """
        if len(rewards) != len(batch):
            raise ValueError(f"rewards: expected {len(batch)}, got {len(rewards)}")
        return [
            reward * factor if reward is not None and reward > 0 else reward
            for reward, factor in zip(rewards, self.factors(batch), strict=True)
        ]


def _scaled(penalty: float) -> float:
    factor = math.exp(-penalty)
    return factor if factor >= _LEAST else 0.0


def _remember(
    past: UsualLengths, batch: Sequence[Completion], measured: Sequence[tuple[Member, Excess]]
) -> None:
    """What earned nothing says what is usual; what earned is held against that.

    This batch's unpaid answers count at once: of a model that thinks at length, the first large
    batch would otherwise look like padding.
    """
    named = [(m, m.node, m.worth, excess) for m, excess in measured]
    past.observe([
        (node, excess.log_ratio)
        for _, node, worth, excess in named
        if node is not None and worth is not None and worth <= 0
    ])  # fmt: skip
    known = past.known()
    paid = defaultdict[str, list[Paid]](list)
    for member, node, worth, _ in named:
        if node is not None and worth is not None and worth > 0:
            group = paid[prompt_key(batch[member.index].prompt)]
            group.append(Paid.of(node, worth, member.length, known.get(node, _NOTHING)))
    past.observe_paid(list(paid.values()))
