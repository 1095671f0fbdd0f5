"""Drift profiles: how far an honest node's numbers can drift from the verifier's, and how often.

The defaults come from small measurements on SmolLM2-135M at T = 1 and top-k 50, generated with a
cache. Tokens outside the support, by raw logits: in fp32, none of 17,973; generated in bf16 and
scored in fp32, 7 of 5,602, none by 0.1; as retokenised text, 16 of 5,606 by more than 0.5 and 2 by
more than 4; with bf16 rounding on one side only (`make drift`), 25 of 23,567 and 7 of 23,957, none
by 0.25. `BFLOAT16` and `TEXT` are deliberately looser; the events behind the small rates in
`FLOAT32` are too rare to count, so those rates are derived from fp32 noise, about 1e-4 logits.

``tau`` in `BFLOAT16` is 1.5 times the largest difference reported between engines, 0.66 nats
(Hugging Face in bf16, batch 1 against 8, 3,916 tokens of Qwen2.5-0.5B-Instruct,
github.com/huggingface/trl issue 6789; 95 % lie below 0.12). `FLOAT32` assumes the same engine on
both sides: between vLLM and Hugging Face in fp32, the same issue reports up to 0.37. Use
`grpo-guard calibrate` to replace these numbers with your own.

``replay`` in `BFLOAT16` assumes margins about twice as large as those measured here, because the
log-probs in that issue drift about twice as far. Measured with bf16 rounding on one side
(`make replay`, 73,050 tokens): 1.1 and 1.7 % of informative tokens mismatch, 22 and 56 tokens have
margins of 0.1 or more, 0 and 2 of 0.25 or more, none of 0.5. The rates for margins beyond 0.25 are
extrapolated from that shape, because such margins are too rare to count; they must extend far
enough that no token goes free in a long completion.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.logprob.scorers.base import Scorer
from grpo_guard.logprob.stats import Floats

# The fields of a SamplingSpec that affect drift; lengths and EOS ids may differ.
SUPPORT_FIELDS = ("engine", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class Origin:
    """The setting a profile was measured in, the only one it is valid for."""

    path: str  # the file that the profile was read from
    sampling: SamplingSpec
    identity: tuple[tuple[str, str], ...]  # the items of `Scorer.identity`, sorted


@dataclass(frozen=True, slots=True)
class DriftProfile:
    """Bounds on how far numerical drift alone can move an honest completion.

    Args:
        name: The profile's name, shown in verdicts so that a loose check is not mistaken for a
            strict one.
        rates: Pairs ``((gap, rate), ...)`` for increasing gaps. The rate is the maximum share of
            honest tokens at least ``gap`` raw logits below the edge of the support. A gap between
            two entries gets the rate of the smaller gap; there is no interpolation. The first gap
            is the margin: any token closer than that is ambiguous and is not counted.
        ulps: Minimum margin, in bf16 units in the last place of the token's logit.
        mass_margin: How far top-p is widened, in probability.
        least_tail: Minimum tail mass; smaller ones are raised to it, so that no single drifting
            token can decide the surprise test.
        floor_tail: Tail mass below which a single token is decisive by itself; 0 for never.
        tau: How far drift can push a log-prob below the honest sampler's, in nats at T = 1. Drift
            acts on logits, so the allowance at temperature T is tau / T. If infinite, single tokens
            are not tested.
        replay: Pairs ``((margin, rate), ...)`` for increasing margins. Under a public coin, the
            rate is the maximum share of honest tokens beaten by another token in the support by at
            least ``margin`` raw logits; the first, at 0, is the share of mismatches among positions
            where the policy is not sure. If empty, the profile does not cover replays.
        origin: The setting in which the profile was measured, or None if it is not tied to one.

    Raises:
        ValueError: a field is out of range.
    """

    name: str
    rates: tuple[tuple[float, float], ...]
    ulps: float
    mass_margin: float
    least_tail: float
    floor_tail: float
    tau: float = math.inf
    replay: tuple[tuple[float, float], ...] = ()
    origin: Origin | None = None

    def __post_init__(self) -> None:
        replay_ok = not self.replay or (_is_table(self.replay) and self.replay[0][0] == 0)
        for field, ok, expected in (
            ("rates", _is_table(self.rates), "rising gaps, falling rates < 1"),
            ("replay", replay_ok, "none, or rising margins from 0 on, falling rates < 1"),
            ("ulps", self.ulps >= 0, "a number >= 0"),
            ("mass_margin", 0 <= self.mass_margin < 1, "a number in [0, 1)"),
            ("least_tail", 0 < self.least_tail <= 1, "a number in (0, 1]"),
            ("floor_tail", 0 <= self.floor_tail < 1, "a number in [0, 1)"),
            ("tau", self.tau >= 0, "a number >= 0"),
        ):
            if not ok:
                raise ValueError(
                    f"DriftProfile.{field}: expected {expected}, got {getattr(self, field)!r}"
                )

    def require_match(self, sampling: SamplingSpec, scorer: Scorer) -> None:
        """Refuse a sampler or scorer that this profile was not measured on, with a ValueError that
        lists every field that differs."""
        if self.origin is None:
            return
        pairs = [
            (f"sampling.{name}", getattr(self.origin.sampling, name), getattr(sampling, name))
            for name in SUPPORT_FIELDS
        ]
        measured, found = dict(self.origin.identity), scorer.identity()
        pairs += [
            (f"identity.{name}", measured.get(name), found.get(name))
            for name in sorted({*measured, *found})
        ]
        differing = [f"{name}: expected {a!r}, got {b!r}" for name, a, b in pairs if a != b]
        if differing:
            raise ValueError(
                f"profile {self.origin.path}: calibrated for something else: {'; '.join(differing)}"
            )

    def margins(self, logit: Floats) -> Floats:
        """Return the margin of each token from its raw logit, shape [n] -> [n]."""
        return np.maximum(self.rates[0][0], self.ulps * bf16_ulp(logit))

    def rate(self, gap: Floats) -> Floats:
        """Return the share of honest tokens at least ``gap`` outside; 1 below the margin, [n]."""
        gaps, rates = np.transpose(self.rates)
        index = np.searchsorted(gaps, gap, side="right") - 1
        return np.where(index < 0, 1.0, rates[index])


def _is_table(table: tuple[tuple[float, float], ...]) -> bool:
    """Whether the gaps increase from 0 or more and the rates decrease within (0, 1)."""
    gaps, rates = [gap for gap, _ in table], [rate for _, rate in table]
    increasing = bool(gaps) and gaps[0] >= 0 and all(a < b for a, b in pairwise(gaps))
    decreasing = all(a >= b for a, b in pairwise(rates))
    return increasing and decreasing and all(0 < rate < 1 for rate in rates)


def bf16_ulp(x: Floats) -> Floats:
    """Return the spacing of bfloat16 numbers around |x|."""
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
    tau=1.0,
    replay=(
        (0.0, 3e-2),
        (0.1, 5e-3),
        (0.25, 6e-4),
        (0.5, 2e-5),
        (0.75, 6e-7),
        (1.0, 3e-8),
        (1.5, 1e-10),
        (2.5, 1e-14),
    ),
)
"""The default, for bf16 generation or verification, or another engine, batch size or GPU."""

FLOAT32 = DriftProfile(
    "float32",
    rates=((0.05, 1e-5), (0.25, 1e-7), (1.0, 1e-9)),
    ulps=0.0,
    mass_margin=0.02,
    least_tail=1e-6,
    floor_tail=1e-8,
    tau=0.05,
    replay=((0.0, 1e-3), (0.02, 1e-4), (0.1, 1e-5), (0.25, 1e-7), (0.5, 1e-9), (1.0, 1e-14)),
)
"""For fp32 on both sides with identical weights."""

TEXT = DriftProfile(
    "text",
    rates=((0.5, 5e-3), (2.0, 3e-3), (4.0, 1e-3), (6.0, 2e-4), (10.0, 1e-5)),
    ulps=2.0,
    mass_margin=0.1,
    least_tail=1e-3,
    floor_tail=0.0,
    tau=math.inf,
)
"""For text without token ids: retokenising changes 1-3 % of the tokens, so none is decisive."""

BITWISE = DriftProfile(
    "bitwise",
    rates=((0.0, 1e-9),),
    ulps=0.0,
    mass_margin=0.0,
    least_tail=1e-12,
    floor_tail=1e-12,
    tau=0.0,
    # The second rate also covers positions where the policy is sure.
    replay=((0.0, 1e-9), (1e-9, 1e-10)),
)
"""For two sides that compute identical bits however requests are batched: a single token outside
the support, or other than the one drawn, leads to rejection. Use `same_bits` to test whether two
engines qualify.
"""

PROFILES = {profile.name: profile for profile in (BFLOAT16, FLOAT32, TEXT, BITWISE)}
