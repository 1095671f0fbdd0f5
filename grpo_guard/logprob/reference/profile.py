"""A profile of honest completions' scores under one reference model, and its JSON file format."""

import math
from pathlib import Path
from statistics import median
from typing import Final, Literal, Self

import numpy as np
from pydantic import ConfigDict, Field, model_validator

from grpo_guard.core.cached_property import cached_property
from grpo_guard.logprob.profile_file import Strict, read_model
from grpo_guard.logprob.reference.group import Usual
from grpo_guard.logprob.reference.null import ExponentialTail
from grpo_guard.logprob.stats import Floats, TokenStats

FORMAT: Final = 1
# Ten thousand scores are enough for p-values of 1e-4 and take 200 kB.
MOST_SCORES: Final = 10_000
BUILT_IN: Final = "smollm2-gsm8k"
_FOLDER: Final = Path(__file__).parent


def strangeness(stats: TokenStats, cap: float) -> Floats:
    """Return the mean of surprisal -log p (at most ``cap``) and entropy H per token, nats, [n].

    A foreign phrase raises both: its words are unlikely, and after them the reference cannot
    predict what comes next. With their difference, the usual way to standardise surprisal, the two
    rises cancel out and the TEXT attack is all but missed; surprisal alone and entropy alone each
    detect less than the mean (docs/reference-likelihood.md).

    Surprisal is capped because a token that the reference rules out has an infinite one, and a
    single odd name or number, which may well be honest, must not decide the verdict.
    """
    mean: Floats = (np.minimum(-stats.logprob, cap) + stats.entropy) / 2
    return mean


class Settings(Strict):
    """Settings for scoring tokens.

    The defaults were tuned on completions not used for any reported figure. ``allowance`` is what
    the CUSUM subtracts per token so that honest text drifts downwards, in standard deviations of
    honest token strangeness.
    """

    cap: float = Field(default=12.0, gt=0)  # maximum surprisal of a token, nats; see `strangeness`
    allowance: float = Field(default=1.0, ge=0)


class TokenScale(Strict):
    """Mean and standard deviation of the strangeness of honest tokens, nats."""

    mean: float
    spread: float = Field(gt=0)

    @classmethod
    def of(cls, strangeness: Floats) -> Self:
        """Estimate the scale from all honest tokens' strangeness, shape [n]."""
        return cls(mean=float(strangeness.mean()), spread=max(float(strangeness.std()), 1e-3))


class ReferenceProfile(Strict):
    """The null distribution under one reference: the length-free scores of honest completions in
    ascending order, plus the lengths of the shortest and longest completion in tokens."""

    model_config = ConfigDict(ignored_types=(cached_property,))

    format: Literal[1] = FORMAT
    name: str = Field(min_length=1, max_length=200)
    identity: dict[str, str]  # what produced the numbers, from `Scorer.identity`
    settings: Settings  # how tokens were scored
    tokens: TokenScale  # the scale on which the CUSUM measures tokens
    rate: float = Field(gt=0)  # decay rate of the largest run, see `null.decay_rate`
    scores: tuple[float, ...] = Field(min_length=1, max_length=MOST_SCORES)
    shortest: int = Field(ge=1)
    longest: int = Field(ge=1)
    method: str  # describes the completions and their number

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if list(self.scores) != sorted(self.scores):
            raise ValueError("scores: expected ascending numbers")
        return self

    @property
    def least_p(self) -> float:
        """The smallest conformal p-value possible with this number of honest completions."""
        return 1 / (len(self.scores) + 1)

    @cached_property
    def usual(self) -> Usual:
        """Median and spread (1.4826 MAD) of the honest scores."""
        middle = median(self.scores)
        spread = 1.4826 * median(abs(score - middle) for score in self.scores)
        return Usual(middle, max(spread, 1e-6))

    @cached_property
    def tail(self) -> ExponentialTail | None:
        """The exponential tail beyond the honest scores, or None if there are too few scores."""
        return ExponentialTail.fit(self.scores)

    def require_match(self, identity: dict[str, str]) -> None:
        """Refuse a reference with a different architecture.

        The dtype may differ: between fp32 and bf16 a score shifts by at most 0.14, while honest
        scores have a spread of 1.4 (12 completions, SmolLM2-135M). Different weights of the same
        shape cannot be told apart. The ValueError names both architectures.
        """
        ours, theirs = (of.get("architecture") for of in (self.identity, identity))
        if ours != theirs:
            raise ValueError(
                f"profile {self.name!r}: expected architecture {ours!r}, got {theirs!r}; calibrate "
                "one for this reference"
            )

    def write(self, path: Path) -> None:
        """Write the profile as JSON."""
        path.write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")


def read_profile(source: str | Path) -> ReferenceProfile:
    """Read a built-in profile by name, or a profile from a file; raises as `read_model` does."""
    path = _FOLDER / f"{BUILT_IN}.json" if source == BUILT_IN else Path(source)
    return read_model(path, ReferenceProfile, FORMAT)


def token_scores(stats: TokenStats, settings: Settings, tokens: TokenScale) -> Floats:
    """Return the CUSUM terms, one per token, in standard deviations of an honest token, [n]."""
    scaled = (strangeness(stats, settings.cap) - tokens.mean) / tokens.spread
    scores: Floats = scaled - settings.allowance
    return scores


def needed_for(alpha: float) -> int:
    """Return how many honest completions a conformal p-value as low as ``alpha`` needs."""
    return math.ceil(1 / alpha - 1 - 1e-9)
