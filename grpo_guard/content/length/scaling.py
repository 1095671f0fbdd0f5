"""Multiplicative length scaling: what takes the reward out of length where nothing is certain.

After Group Relative Reward Rescaling (GR3, arXiv 2603.10535), which multiplies each reward by a
factor that falls with the length relative to the group's; additive penalties can be traded against
the reward, a factor cannot. Four things differ here, since the group holds an attacker.

The measure is the group's median and not its mean, which a quarter of long completions would raise
by half. The factor is 1 up to some standard deviations above it, then falls as a power that the
group's own spread sets, down to 0: where all completions are alike, a third more is much; where
they differ, it is little.

Where models differ, one that thinks at length must not lose its reward because the others write
shortly. With `UsualLengths` a node is measured by its own past once it has one, by the group before
that: what its work is usually longer by is taken off. The past is read off answers that earned
nothing, so padding that is paid for never becomes usual. Of right completions of a model that
thinks (four times as long as the others) the mean factor is 0.86 with its past and 0.04 without;
padding of right answers earns the same with and without.

What is a quarter longer than the others' stands out of no group, and a node that sends nothing else
leads the swarm to write ever more. A node whose paid work is longer than most others' by more than
its unpaid work is, over many batches, has no tolerance, and nothing for what is longer.

And how many standard deviations are free depends on the sender's other completions in the batch. An
honest node's long answer stands beside its ordinary ones; one whose work is ordinary on average has
the benefit of the doubt, one whose work is long on average has less than a stranger has. Without
that, whatever takes away the choice of the longest of eighty takes a third of the reward of honest
correct answers too. Lengths below the median cannot buy much: they count as half a deviation at
most, or short completions would pay for long ones.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grpo_guard.completion import Completion
from grpo_guard.content.length.compare import Comparison, Excess, bounded
from grpo_guard.content.length.groups import Member, RewardOf
from grpo_guard.nodes.usual_lengths import Paid, Usual, UsualLengths
from grpo_guard.prompts import prompt_key
from grpo_guard.turns import own_words

# Other completions of a node that earn it half of the benefit of the doubt.
_TRUST_AFTER = 4
# As many completions of ordinary length are added to a node's record.
_STRANGERS = 2
# Bounds of what one completion adds to the record, and the mean of a normal one between them.
_LOWEST, _HIGHEST, _ORDINARY = 0.5, 3.0, 0.2
_NOTHING = Usual()
# Less than this is nothing. A trainer that divides by a group's deviation would make a whole
# advantage of the smallest reward in a group where nothing else earns, as where the question is too
# hard for everybody but an attacker who knows the answer.
_LEAST = 0.01
# A node that is longer when it is paid has no tolerance, and this many times the strength: what is
# a third of a deviation too long is to leave its group. Less would keep it there as a loser, and a
# right answer that loses teaches to be wrong.
_CHOSEN = 4.0


class _Record:
    """How long one node's completions of a batch are, in clipped standard deviations."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0

    def add(self, deviation: float) -> None:
        self.count += 1
        self.total += _clipped(deviation)

    def without(self, deviation: float) -> tuple[int, float]:
        """(the others' number, how far their mean is above an ordinary node's)."""
        others = self.count - 1
        if others < 1:
            return 0, 0.0
        return others, max((self.total - _clipped(deviation)) / others - _ORDINARY, 0.0)


def _clipped(deviation: float) -> float:
    return min(max(deviation, -_LOWEST), _HIGHEST)


@dataclass(frozen=True, slots=True)
class LengthScaling:
    """Scales rewards by length, group by group, with the robust statistics of `LengthVerifier`.

    Each completion is measured by the others of its prompt: of other nodes and of equal worth
    where there are enough. Apply it to the rewards *after* the verdicts' veto and before the
    trainer computes advantages, to batches of many prompts: in a batch of one prompt every node is
    nearly a stranger. ``Completion.node`` has to be the sender's known identity.

    Args:
        tolerance: Standard deviations above the median that cost a stranger nothing, >= 0.
        strength: ``factor = exp(-strength * (z - tolerance))`` for z standard deviations above the
            median, at most 1; that is, a power of the ratio of lengths. 0 = nothing is scaled.
        trusted_tolerance: The same for a node whose many other completions are of ordinary length.
        node_weight: Standard deviations taken from the tolerance for each that the node's other
            completions lie above the median on average; 0 = nodes are not told apart, nor by
            how long their paid work has been.
        reward_of: Reward of a completion, for comparing equals only; None = by its reference.
        wanted_peers: How many equals from other nodes make a comparison; else all others do, and
            with fewer of them than this nothing is scaled.
        past: Nodes' own lengths, for models that differ; True = a `UsualLengths` of its own. Needs
            ``reference`` or ``reward_of``, since it learns from what earned nothing. A node that
            sends long wrong answers on purpose teaches it a wrong usual: each costs it a place.
            None: all are measured by the group, and a node whose honest model is much more
            long-winded than the others' loses as one that pads does.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> rewards = guard.apply(rewards, completions)
        >>> rewards = LengthScaling().apply(rewards, completions)
    """

    tolerance: float = 0.5
    strength: float = 4.0
    trusted_tolerance: float = 2.0
    node_weight: float = 1.5
    reward_of: RewardOf | None = None
    wanted_peers: int = 3
    past: UsualLengths | bool | None = None

    def __post_init__(self) -> None:
        for name in ("tolerance", "strength", "trusted_tolerance", "node_weight"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"LengthScaling.{name}: expected a number >= 0, got {value!r}")
        # A file can only say yes or no.
        object.__setattr__(self, "past", UsualLengths() if self.past is True else self.past or None)

    def factors(self, batch: Sequence[Completion]) -> list[float]:
        """One factor in [0, 1] per completion, in order; 1 where there is nothing to compare.

        With ``past`` the batch is remembered, and is measured by what was known before it.
        """
        batch = own_words(batch)  # a tool's page is nobody's padding
        past = self.past if isinstance(self.past, UsualLengths) else None
        known = past.known() if past is not None else {}
        chosen = frozenset[str]()
        if past is not None and self.node_weight > 0:
            chosen = past.longer_when_paid()
        measured = self._measured(batch)
        deviations: list[float | None] = [None] * len(batch)
        records = defaultdict[str, _Record](_Record)
        for member, excess in measured:
            usual = known.get(member.node or "", _NOTHING)
            deviation = _deviation(excess, usual)
            deviations[member.index] = deviation
            if member.node is not None:
                records[member.node].add(deviation)
        if past is not None:
            _remember(past, known, batch, measured)
        factors = []
        for completion, found in zip(batch, deviations, strict=True):
            if found is None:
                factors.append(1.0)
            elif completion.node is None:
                factors.append(self._factor(found, _Record()))
            elif completion.node in chosen:
                factors.append(_scaled(_CHOSEN * self.strength * max(found, 0.0)))
            else:
                factors.append(self._factor(found, records[completion.node]))
        return factors

    def _measured(self, batch: Sequence[Completion]) -> list[tuple[Member, Excess]]:
        comparison = Comparison(batch, self.reward_of, self.wanted_peers)
        found = [(m, comparison.of(m, group)) for group in comparison.groups for m in group]
        # One or two say nothing: a sender of two words would take the reward of the right answer
        # beside them.
        return [
            (member, excess)
            for member, excess in found
            if excess is not None and excess.peers >= self.wanted_peers
        ]

    def _factor(self, deviation: float, record: _Record) -> float:
        others, mean = record.without(deviation)
        trust = others / (others + _TRUST_AFTER)
        free = self.tolerance + (self.trusted_tolerance - self.tolerance) * trust
        long_by = self.node_weight * mean * others / (others + _STRANGERS)
        # At least nothing below the median: a long record takes away a tolerance, not a reward
        # that is not long.
        beyond = max(deviation - max(free - long_by, 0.0), 0.0)
        return _scaled(self.strength * beyond)

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
    past: UsualLengths,
    known: Mapping[str, Usual],
    batch: Sequence[Completion],
    measured: Sequence[tuple[Member, Excess]],
) -> None:
    """What earned nothing says what is usual; what earned is held against that."""
    unpaid = list[tuple[str, float]]()
    paid = defaultdict[str, list[Paid]](list)
    for member, excess in measured:
        if member.node is None or member.worth is None:
            continue
        if member.worth <= 0:
            unpaid.append((member.node, excess.log_ratio))
        else:
            usual = known.get(member.node, _NOTHING)
            group = paid[prompt_key(batch[member.index].prompt)]
            group.append(Paid.of(member.node, member.worth, member.length, usual))
    past.observe(unpaid)
    past.observe_paid(list(paid.values()))


def _deviation(excess: Excess, usual: Usual) -> float:
    """Standard deviations above what is normal for this node in this group.

    Its own way of writing only excuses: a node of short work is measured by the group.
    """
    spread = excess.spread
    if usual.excess > 0:
        # No more than `MOST_SPREAD`: who mixes short work with long would widen its own measure.
        spread = bounded(max(spread, usual.spread))
    return (excess.log_ratio - usual.excess) / spread
