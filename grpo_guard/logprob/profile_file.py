"""The JSON file of a calibrated drift profile: its schema, and reading it defensively."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.logprob.profile import PROFILES, DriftProfile, Origin
from grpo_guard.logprob.profile_json import read_model

FORMAT: Final = 1

Source = Literal["measured", "count", "inherited", "extrapolated"]
"""measured: bounds the observed tokens. count: never seen, so only the number of tokens bounds it.
inherited: from the base profile. extrapolated: past what was seen, at a fixed rate of decline."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class GapRate(_Strict):
    """Share of honest tokens at least ``gap`` raw logits outside; ``seen`` of them were.

    For a replay: the share that another token beats by at least ``gap``; at 0, of mismatches.
    """

    gap: float
    rate: float
    seen: int
    source: Source


class Setting(_Strict):
    """One number of the profile; None = infinite."""

    value: float | None
    source: Source


class Drift(_Strict):
    """Sampler log-prob minus ours, nats, over ``tokens`` tokens; quantiles of absolute values."""

    tokens: int
    p50: float
    p95: float
    p99: float
    max: float
    lowest: float
    highest: float
    used_for_tau: bool


class EdgeGaps(_Strict):
    """Raw logits outside the support: number of tokens, and quantiles over those."""

    outside: int
    p50: float | None
    p95: float | None
    p99: float | None
    max: float | None


class TailCount(_Strict):
    """``seen`` tokens had a tail mass <= ``at_most``; honest sampling expects at most that share.

    ``exceeds``: the lower 95 % bound of the share lies above ``at_most``.
    """

    at_most: float
    seen: int
    exceeds: bool


class FalsePositives(_Strict):
    """Honest completions rejected under a profile derived from others, Wilson 95 % interval."""

    verifier: str
    alpha: float
    rejected: int
    abstained: int
    completions: int
    low: float
    high: float


class Numbers(_Strict):
    """The numbers of a `DriftProfile`, each with its source."""

    rates: tuple[GapRate, ...]
    ulps: Setting
    mass_margin: Setting
    least_tail: Setting
    floor_tail: Setting
    tau: Setting
    replay: tuple[GapRate, ...] = ()

    def build(self, name: str, origin: Origin | None = None) -> DriftProfile:
        """Build the drift profile.

        Raises:
            ValueError: a number is out of range.
        """
        return DriftProfile(
            name,
            rates=tuple((rate.gap, rate.rate) for rate in self.rates),
            replay=tuple((rate.gap, rate.rate) for rate in self.replay),
            origin=origin,
            **{
                name: math.inf if one.value is None else one.value
                for name, one in self
                if isinstance(one, Setting)
            },
        )


class ProfileFile(_Strict):
    """The whole file. ``method`` describes how the numbers were obtained."""

    format: Literal[1]
    created_by: str
    name: str = Field(min_length=1, max_length=200)
    base: str
    method: str
    sampling: SamplingSpec
    identity: dict[str, str]
    completions: int
    tokens: int
    profile: Numbers
    edge_gaps: EdgeGaps
    drift: Drift | None
    tail_counts: tuple[TailCount, ...]
    false_positives: tuple[FalsePositives, ...]

    @field_validator("sampling", mode="before")
    @classmethod
    def _whole(cls, given: Any) -> Any:
        """Require each field of the sampling, since a default may differ from what was measured."""
        known = {field.name for field in fields(SamplingSpec)}
        if isinstance(given, dict) and (differing := known ^ given.keys()):
            which = ", ".join(sorted(differing & known)) or "no others"
            raise ValueError(f"expected {which}, got {', '.join(given)}"[:300])
        return given

    def build(self, path: str) -> DriftProfile:
        """Build the drift profile, tied to the setting that it was measured in.

        Raises:
            ValueError: a number is out of range.
        """
        identity = tuple(sorted(self.identity.items()))
        return self.profile.build(self.name, Origin(path, self.sampling, identity))


def profile_of(value: DriftProfile | str | Path) -> DriftProfile:
    """Resolve a profile, a built-in profile's name or the path of the JSON file of one.

    Raises:
        ValueError: neither a built-in name nor a .json path; or, naming the file, it cannot be
            read, is too large, or is not a valid profile.
    """
    if isinstance(value, DriftProfile):
        return value
    if isinstance(value, str) and value in PROFILES:
        return PROFILES[value]
    if isinstance(value, Path) or (isinstance(value, str) and value.endswith(".json")):
        path = Path(value)
        stored = read_model(path, ProfileFile, FORMAT)
        try:
            return stored.build(str(path))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
    raise ValueError(
        f"profile: expected one of {', '.join(PROFILES)} or the path of a .json file, got {value!r}"
    )
