"""How far an honest node's numbers may drift from the verifier's, and how often.

The defaults rest on small measurements of one model, SmolLM2-135M at T = 1. Top-k 20, scored with
a bf16 body: 0.08 % of 1,280 tokens more than 0.25 raw logits outside; noise between two logits up
to 5.7. Top-k 50, generated with a cache: in fp32, none of 17,973 tokens outside at all; in bf16 and
scored in fp32, 7 of 5,602 outside, none by 0.1; as retokenised text, 16 of 5,606 by more than 0.5
and 2 by more than 4. `BFLOAT16` and `TEXT` are looser than that on purpose; the small rates of
`FLOAT32` cannot be counted and follow from fp32's noise, about 1e-4 logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from grpo_guard.logprob.stats import Floats


@dataclass(frozen=True, slots=True)
class DriftProfile:
    """What numerical drift alone may do to an honest completion.

    Args:
        name: Stands in verdicts, so that nobody mistakes a loose check for a strict one.
        rates: ``((gap, rate), ...)``: the highest share of honest tokens that lie at least ``gap``
            raw logits below the support's edge, for increasing gaps. A gap between two of them
            gets the rate of the lower one: no more is claimed than was stated. The first gap is
            the margin: nearer than that, a token is ambiguous and counts for nothing.
        ulps: The margin is at least this many bf16 units in the last place of the token's logit.
        mass_margin: Widening of top-p, in probability.
        least_tail: Tail masses below this count as this, so that no single drifting token can
            decide through the surprise test.
        floor_tail: A token with a smaller tail mass decides by itself; 0 = never.

    Raises:
        ValueError: a field is out of range.
    """

    name: str
    rates: tuple[tuple[float, float], ...]
    ulps: float
    mass_margin: float
    least_tail: float
    floor_tail: float

    def __post_init__(self) -> None:
        gaps, rates = [gap for gap, _ in self.rates], [rate for _, rate in self.rates]
        increasing = bool(gaps) and gaps[0] >= 0 and all(a < b for a, b in pairwise(gaps))
        decreasing = bool(rates) and all(a >= b for a, b in pairwise(rates))
        in_range = all(0 < rate < 1 for rate in rates)
        for field, ok, expected in (
            ("rates", increasing and decreasing and in_range, "rising gaps, falling rates < 1"),
            ("ulps", self.ulps >= 0, "a number >= 0"),
            ("mass_margin", 0 <= self.mass_margin < 1, "a number in [0, 1)"),
            ("least_tail", 0 < self.least_tail <= 1, "a number in (0, 1]"),
            ("floor_tail", 0 <= self.floor_tail < 1, "a number in [0, 1)"),
        ):
            if not ok:
                raise ValueError(
                    f"DriftProfile.{field}: expected {expected}, got {getattr(self, field)!r}"
                )

    def margins(self, logit: Floats) -> Floats:
        """The margin of each token from its raw logit, shape [n] -> [n]."""
        return np.maximum(self.rates[0][0], self.ulps * bf16_ulp(logit))

    def rate(self, gap: Floats) -> Floats:
        """Share of honest tokens at least ``gap`` outside; 1 below the margin. [n] -> [n]."""
        gaps, rates = np.transpose(self.rates)
        index = np.searchsorted(gaps, gap, side="right") - 1
        return np.where(index < 0, 1.0, rates[index])


def bf16_ulp(x: Floats) -> Floats:
    """Distance between neighbouring bfloat16 numbers at |x| (8 bits of significand)."""
    _, exponent = np.frexp(np.abs(x))
    ulp: Floats = np.where(np.isfinite(x) & (x != 0), np.ldexp(1.0, exponent - 8), 0.0)
    return ulp


BFLOAT16 = DriftProfile(
    "bfloat16",
    rates=(
        (0.25, 1e-3),
        (0.5, 4e-4),
        (1.0, 1e-4),
        (2.0, 2e-5),
        (3.0, 5e-6),
        (4.5, 1e-6),
        (6.0, 1e-7),
        (9.0, 1e-9),
    ),
    ulps=2.0,
    mass_margin=0.05,
    least_tail=1e-6,
    floor_tail=1e-8,
)
"""Default: generation or verification, or both, in bf16; another engine, batch size or GPU."""

FLOAT32 = DriftProfile(
    "float32",
    rates=((0.05, 1e-5), (0.25, 1e-7), (1.0, 1e-9)),
    ulps=0.0,
    mass_margin=0.02,
    least_tail=1e-6,
    floor_tail=1e-8,
)
"""Both sides in fp32 on the same weights."""

TEXT = DriftProfile(
    "text",
    rates=((0.5, 5e-3), (2.0, 3e-3), (4.0, 1e-3), (6.0, 2e-4), (10.0, 1e-5)),
    ulps=2.0,
    mass_margin=0.1,
    least_tail=1e-3,
    floor_tail=0.0,
)
"""Text without token ids: retokenising changes 1-3 % of the tokens, so no token decides alone."""

PROFILES = {profile.name: profile for profile in (BFLOAT16, FLOAT32, TEXT)}


def profile_of(value: DriftProfile | str) -> DriftProfile:
    """A profile, or the built-in one of that name.

    Raises:
        ValueError: no built-in profile has this name.
    """
    if isinstance(value, DriftProfile):
        return value
    if value not in PROFILES:
        raise ValueError(f"profile: expected one of {', '.join(PROFILES)}, got {value!r}")
    return PROFILES[value]
