"""Multiplicative length scaling: what takes the reward out of length where nothing is certain.

After Group Relative Reward Rescaling (GR3, arXiv 2603.10535), which multiplies each reward by a
factor that falls with the length relative to the group's; additive penalties can be traded against
the reward, a factor cannot. Two things differ here, since the group holds an attacker. The measure
is the group's median and not its mean, which a quarter of long completions would raise by half. And
the factor is 1 up to the median and a little beyond, then falls as a power that the group's own
spread sets: where all completions are alike, a third more is much; where they differ, it is little.
The price is paid by honest answers above the median; docs/results/screens-length.json says how much
of their reward they keep, and what GR3's own form does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from grpo_guard.completion import Completion
from grpo_guard.content.length.compare import Comparison
from grpo_guard.content.length.groups import RewardOf
from grpo_guard.content.length.statistics import PRIOR_SPREAD


def length_scale(
    lengths: Sequence[float],
    *,
    centre: float | None = None,
    spread: float = PRIOR_SPREAD,
    tolerance: float = 0.25,
    strength: float = 2.5,
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


@dataclass(frozen=True, slots=True)
class LengthScaling:
    """Scales rewards by length, group by group, with the robust statistics of `LengthVerifier`.

    Each completion is measured by the others of its prompt: of other nodes and of equal worth
    where there are enough. Apply it to the rewards *after* the verdicts' veto and before the
    trainer computes advantages.

    Args:
        tolerance: See `length_scale`.
        strength: See `length_scale`.
        reward_of: Reward of a completion, for comparing equals only; None = by its reference.
        wanted_peers: How many equals from other nodes make a comparison; else all others do.

    Example:
        >>> rewards = guard.apply(rewards, completions)
        >>> rewards = LengthScaling().apply(rewards, completions)
    """

    tolerance: float = 0.25
    strength: float = 2.5
    reward_of: RewardOf | None = None
    wanted_peers: int = 3

    def __post_init__(self) -> None:
        length_scale([1.0], tolerance=self.tolerance, strength=self.strength)

    def factors(self, batch: Sequence[Completion]) -> list[float]:
        """One factor in (0, 1] per completion, in order; 1 where there is nothing to compare."""
        comparison = Comparison(batch, self.reward_of, self.wanted_peers)
        factors = [1.0] * len(batch)
        for group in comparison.groups:
            for member in group.members:
                if member.index in group.judged:
                    _, found = comparison.of(member, group)
                    if found is not None:
                        factors[member.index] = self.factor(found.deviation)
        return factors

    def factor(self, deviation: float) -> float:
        """The factor for a completion so many standard deviations above its peers' median."""
        return factor_of(deviation, tolerance=self.tolerance, strength=self.strength)

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
