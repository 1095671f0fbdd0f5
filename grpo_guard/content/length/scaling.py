"""Multiplicative length scaling: what takes the reward out of length where nothing is certain.

After Group Relative Reward Rescaling (GR3, arXiv 2603.10535), which multiplies each reward by a
factor that falls with the length relative to the group's; additive penalties can be traded against
the reward, a factor cannot. Three things differ here, since the group holds an attacker.

The measure is the group's median and not its mean, which a quarter of long completions would raise
by half. The factor is 1 up to some standard deviations above it, then falls as a power that the
group's own spread sets: where all completions are alike, a third more is much; where they differ,
it is little.

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
from collections.abc import Sequence
from dataclasses import dataclass

from grpo_guard.completion import Completion
from grpo_guard.content.length.compare import Comparison
from grpo_guard.content.length.groups import RewardOf
from grpo_guard.content.length.statistics import PRIOR_SPREAD

# Other completions of a node that earn it half of the benefit of the doubt.
_TRUST_AFTER = 4
# As many completions of ordinary length are added to a node's record.
_STRANGERS = 2
# Bounds of what one completion adds to the record, and the mean of a normal one between them.
_LOWEST, _HIGHEST, _ORDINARY = 0.5, 3.0, 0.2


def length_scale(
    lengths: Sequence[float],
    *,
    centre: float | None = None,
    spread: float = PRIOR_SPREAD,
    tolerance: float = 0.5,
    strength: float = 4.0,
) -> list[float]:
    """Factors in (0, 1] for the lengths of one group.

    ``f_i = min(1, exp(-strength * (z_i - tolerance)))`` with
    ``z_i = (log length_i - log centre) / spread``; that is, a power of the ratio of lengths:
    ``(centre * exp(tolerance * spread) / length_i) ** (strength / spread)``.

    Args:
        lengths: In any unit, each > 0.
        centre: What is normal; None = the median, of an even number the lower one.
        spread: Standard deviation of log length among honest completions, > 0.
        tolerance: Standard deviations above the centre that cost nothing, >= 0.
        strength: How fast it falls beyond; 0 = not at all.

    Raises:
        ValueError: a length or an argument is out of range.
    """
    if any(not (math.isfinite(x) and x > 0) for x in lengths):
        raise ValueError("length_scale.lengths: expected finite numbers > 0")
    for name, value, least in (("tolerance", tolerance, 0.0), ("strength", strength, 0.0)):
        if not (math.isfinite(value) and value >= least):
            raise ValueError(f"length_scale.{name}: expected a number >= 0, got {value!r}")
    if not (math.isfinite(spread) and spread > 0):
        raise ValueError(f"length_scale.spread: expected a number > 0, got {spread!r}")
    if not lengths:
        return []
    middle = sorted(lengths)[(len(lengths) - 1) // 2] if centre is None else centre
    return [
        factor_of(math.log(length / middle) / spread, tolerance=tolerance, strength=strength)
        for length in lengths
    ]


def factor_of(z: float, *, tolerance: float, strength: float) -> float:
    """The factor of one completion, z standard deviations above what is normal."""
    # Never 0: a factor is no verdict, and log-space callers divide by it.
    return min(1.0, max(math.exp(max(-strength * max(z - tolerance, 0.0), -600.0)), 1e-200))


def gr3_scale(lengths: Sequence[float], *, strength: float = 1.0) -> list[float]:
    """GR3's form as its abstract describes it, for comparison: ``1 / (1 + strength * l / mean)``.

    Args:
        lengths: Of one group, each > 0.
        strength: Weight of the relative length, >= 0.
    """
    mean = sum(lengths) / max(len(lengths), 1)
    return [1 / (1 + strength * length / mean) for length in lengths]


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
    nearly a stranger. ``Completion.node`` has to be the sender's known identity. A node whose
    honest model is much more long-winded than the others' loses as a node that pads does: where
    models differ so, set ``node_weight=0``.

    Args:
        tolerance: Standard deviations above the median that cost a stranger nothing, >= 0.
        strength: See `length_scale`.
        trusted_tolerance: The same for a node whose many other completions are of ordinary length.
        node_weight: Standard deviations taken from the tolerance for each that the node's other
            completions lie above the median on average; 0 = nodes are not told apart.
        reward_of: Reward of a completion, for comparing equals only; None = by its reference.
        wanted_peers: How many equals from other nodes make a comparison; else all others do, and
            with fewer of them than this nothing is scaled.

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

    def __post_init__(self) -> None:
        length_scale([1.0], tolerance=self.tolerance, strength=self.strength)
        for name in ("trusted_tolerance", "node_weight"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"LengthScaling.{name}: expected a number >= 0, got {value!r}")

    def factors(self, batch: Sequence[Completion]) -> list[float]:
        """One factor in (0, 1] per completion, in order; 1 where there is nothing to compare."""
        deviations = self._deviations(batch)
        records = defaultdict[str, _Record](_Record)
        for completion, deviation in zip(batch, deviations, strict=True):
            if completion.node is not None and deviation is not None:
                records[completion.node].add(deviation)
        factors = []
        for completion, deviation in zip(batch, deviations, strict=True):
            record = records[completion.node] if completion.node is not None else _Record()
            factors.append(1.0 if deviation is None else self._factor(deviation, record))
        return factors

    def _deviations(self, batch: Sequence[Completion]) -> list[float | None]:
        """Standard deviations above the peers' median; None without enough peers."""
        comparison = Comparison(batch, self.reward_of, self.wanted_peers)
        found: list[float | None] = [None] * len(batch)
        for group in comparison.groups:
            for member in group:
                peers, excess = comparison.of(member, group)
                # One or two say nothing: a sender of two words would take the reward of the right
                # answer beside them.
                if excess is not None and len(peers) >= self.wanted_peers:
                    found[member.index] = excess.deviation
        return found

    def _factor(self, deviation: float, record: _Record) -> float:
        others, mean = record.without(deviation)
        trust = others / (others + _TRUST_AFTER)
        free = self.tolerance + (self.trusted_tolerance - self.tolerance) * trust
        long_by = self.node_weight * mean * others / (others + _STRANGERS)
        # At least nothing below the median: a long record takes away a tolerance, not a reward
        # that is not long.
        return factor_of(deviation, tolerance=max(free - long_by, 0.0), strength=self.strength)

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
