"""The JSON file of a calibrated drift profile: schema and defensive parsing."""

import math
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from grpo_guard.core.cached_property import cached_property
from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.logprob.profile import PROFILES, DriftProfile, Origin

# A profile takes a few kilobytes, at most 200; files above this limit are refused before parsing.
MAX_BYTES: Final = 1024 * 1024
_VERSION: Final = re.compile(rb'"format"\s*:\s*(\d{1,9})')
_Model = TypeVar("_Model", bound=BaseModel)


def read_model(path: Path, kind: type[_Model], format: int) -> _Model:
    """Read and validate a profile file of the given kind and version (its field ``format``); raises
    ValueErrors that name the file."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{path}: expected a readable profile, got {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise ValueError(f"{path}: expected at most {MAX_BYTES} bytes of JSON, got more")
    # The version is checked first: a file in another format would fail on many fields without any
    # error pointing to the format.
    version = _VERSION.search(data)
    if version and int(version[1]) != format:
        raise ValueError(f"{path}: format: expected {format}, got {int(version[1])}")
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(str(part) for part in problem["loc"]) or "(file)"
        raise ValueError(f"{path}: {field}: {problem['msg']}") from None


FORMAT: Final = 1

Source = Literal["measured", "count", "inherited", "extrapolated"]
"""Where a number comes from. measured: a bound from the tokens observed. count: the event was never
observed, so the bound rests on the token count alone. inherited: taken from the base profile.
extrapolated: beyond what was observed, at a fixed rate of decline."""


class Strict(BaseModel):
    """A part of a profile's file: finite numbers and no other fields."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, ignored_types=(cached_property,)
    )


class GapRate(Strict):
    """Bound on the share of honest tokens at least ``gap`` raw logits outside the support, and how
    many were ``seen``. For a replay, those beaten by another token by ``gap``; at 0, mismatches."""

    gap: float
    rate: float
    seen: int
    source: Source


class Setting(Strict):
    """One number of the profile; a value of None means infinity."""

    value: float | None
    source: Source


class Drift(Strict):
    """The sampler's log-probs minus the scorer's, in nats; quantiles are of absolute values."""

    tokens: int
    p50: float
    p95: float
    p99: float
    max: float
    lowest: float
    highest: float
    used_for_tau: bool


class EdgeGaps(Strict):
    """Number of tokens outside the support, and quantiles of how far outside, in raw logits."""

    outside: int
    p50: float | None
    p95: float | None
    p99: float | None
    max: float | None


class TailCount(Strict):
    """Number of tokens ``seen`` with a tail mass of at most ``at_most``, which also bounds their
    expected share in honest work; ``exceeds`` if the share's lower 99.9 % bound is larger."""

    at_most: float
    seen: int
    exceeds: bool


class FalsePositives(Strict):
    """How many honest completions were rejected under a profile derived from others, with the
    Wilson 95 % interval of the rate."""

    verifier: str
    alpha: float
    rejected: int
    abstained: int
    completions: int
    low: float
    high: float


class Numbers(Strict):
    """The numbers of a `DriftProfile`, each with its source."""

    rates: tuple[GapRate, ...]
    ulps: Setting
    mass_margin: Setting
    least_tail: Setting
    floor_tail: Setting
    tau: Setting
    replay: tuple[GapRate, ...] = ()

    def build(self, name: str, origin: Origin | None = None) -> DriftProfile:
        """Build the drift profile; raises ValueError if a number is out of range."""
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


class ProfileFile(Strict):
    """The contents of a profile file. ``method`` describes how the numbers were obtained."""

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
        """Require every sampling field: a default could differ from what was measured."""
        known = {field.name for field in fields(SamplingSpec)}
        if isinstance(given, dict) and (differing := known ^ given.keys()):
            which = ", ".join(sorted(differing & known)) or "no others"
            raise ValueError(f"expected {which}, got {', '.join(given)}"[:300])
        return given

    def build(self, path: str) -> DriftProfile:
        """Build the drift profile as `Numbers.build` does, tied to where it was measured."""
        identity = tuple(sorted(self.identity.items()))
        return self.profile.build(self.name, Origin(path, self.sampling, identity))


def profile_of(value: DriftProfile | str | Path) -> DriftProfile:
    """Return a profile unchanged, or load one by its built-in name or from the path of a JSON file;
    raises ValueErrors that name the file."""
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
