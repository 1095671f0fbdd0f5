"""Scan: is any stretch of tokens too unlikely, whatever surrounds it?

Foreign text inside an honest completion may be only a few tokens long. Without truncation no token
is outside the support, and in a test over the whole completion those few tokens are lost among the
rest. So each window of 1 to `LONGEST` tokens is tested separately.

Let u be the probability of all tokens no likelier than the chosen token. For an honest token, u
minus a uniform share of the token's own probability is exactly uniform (stochastically larger if
the sampler truncates). The share comes from a keyed hash of prompt and completion, so the author
cannot choose tokens to exploit it. A repeated completion gets the same shares, so p-values based on
them must not be multiplied over completions. For uniform u, x = -log u is exponential, the sum over
a window of w tokens has the Gamma(w) tail, and the statistic is the smallest tail of all windows.

The windows overlap, so a Bonferroni correction over positions and lengths would waste a factor of
four. The probability that no window of n tokens has a tail of at most s falls geometrically in n
(Naus, JASA 77, 1982, for scan statistics), so two lengths determine all the others: `CHANCES` are
the probabilities for 32 and 64 independent exponential numbers, simulated 60,000,000 times each,
with a relative error of 1 % at the smallest.
"""

import math
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b

import numpy as np

from grpo_guard.logprob.profile import DriftProfile
from grpo_guard.logprob.stats import Floats, Ints, TokenStats

LONGEST = 16
_SHORT = 32
# Share of `DriftProfile.tau` allowed per token: drift is not at its worst throughout a stretch.
DRIFT_SHARE = 0.05
# (s, chance that some window within 32 tokens has a tail of at most s, same chance for 64 tokens).
# tests/logprob/test_scan.py repeats the simulation.
CHANCES = (
    (0.2, 0.99925, 0.9999994),
    (0.1, 0.97183, 0.99920),
    (0.03, 0.69202, 0.90629),
    (0.01, 0.36244, 0.59788),
    (3e-3, 0.14641, 0.27611),
    (1e-3, 0.058623, 0.11684),
    (3e-4, 0.020433, 0.041898),
    (1e-4, 0.0075988, 0.015774),
    (3e-5, 0.0025254, 0.0052664),
    (1e-5, 0.00091313, 0.0019073),
    (3e-6, 0.00029745, 0.00061412),
    (1e-6, 0.00010478, 0.00021802),
)
# For tails this small, far beyond the table, windows hardly ever coincide, so Bonferroni loses
# nothing.
_FAR = 1e-12
_LOG_FACTORIALS = np.array([math.lgamma(k + 1) for k in range(LONGEST)])


@dataclass(frozen=True, slots=True)
class Scan:
    """The least likely window of a completion."""

    p_value: float  # super-uniform for honest work, in [0, 1]
    span: tuple[int, int]  # half-open, in tokens


def scan(tails: Floats) -> Scan:
    """Find the least likely window of up to `LONGEST` tokens.

    ``tails`` are in (0, 1], shape [n], n >= 1. For honest tokens they must be independent and
    uniform, or stochastically larger.
    """
    paths = np.concatenate([[0.0], np.cumsum(-np.log(tails))])
    lengths = np.arange(1, min(LONGEST, len(tails)) + 1)
    sums = [paths[length:] - paths[:-length] for length in lengths]
    starts = [int(of_length.argmax()) for of_length in sums]
    largest = np.array([of_length[start] for of_length, start in zip(sums, starts, strict=True)])
    chances = gamma_tail(lengths, largest)
    best = int(chances.argmin())
    span = (starts[best], starts[best] + int(lengths[best]))
    return Scan(chance_of(float(chances[best]), len(tails)), span)


def chance_of(tail: float, n: int) -> float:
    """Return the probability that any window of n honest tokens has at most this tail, in [0, 1].

    For fewer than 32 tokens, this is the probability for 32, or the Bonferroni bound if smaller.
    """
    if tail >= CHANCES[0][0]:
        return 1.0
    tails, first, more = _hazards()
    at = math.log(max(tail, _FAR)), tails
    base, rate = (math.exp(np.interp(*at, logs)) * tail for logs in (first, more))
    beyond = -math.expm1(-(base + rate * max(n - _SHORT, 0)))
    return min(1.0, beyond, n * LONGEST * tail)


def scan_tails(
    stats: TokenStats, profile: DriftProfile, temperature: float, shares: Floats | None
) -> Floats:
    """Return tail masses for `scan`, with an allowance for drift; shape [n].

    An infinite ``tau`` sets all tails to 1. Without `keyed_shares` no part of the chosen token's
    own probability is subtracted, which leaves the tails larger than uniform.
    """
    drift = DRIFT_SHARE * profile.tau / temperature
    if not math.isfinite(drift):
        return np.ones(len(stats.tail_mass))
    # For tied tokens, only the chosen token's mass is subtracted, which leaves a larger tail.
    lump = 0.0 if shares is None else shares * np.exp(stats.logprob)
    tails = (stats.tail_mass - lump) * math.exp(min(drift, 700.0))
    return np.clip(tails, profile.least_tail, 1.0)


def keyed_shares(key: bytes, ids: tuple[int, ...], n: int) -> Floats:
    """Return the uniform share of its own probability to subtract for each of n tokens.

    Authors must not know the key, of at most 64 bytes. Identical ids give identical verdicts.
    """
    seed = blake2b(np.asarray(ids, np.int64).tobytes(), key=key, digest_size=16).digest()
    generator = np.random.Generator(np.random.PCG64(int.from_bytes(seed, "little")))
    return generator.random(n)


def gamma_tail(shapes: Ints, x: Floats) -> Floats:
    """Return P(X >= x) for X ~ Gamma(shape, 1), [m]."""
    k = np.arange(int(shapes.max()))
    positive = np.maximum(x, np.finfo(float).tiny)[:, None]
    terms = np.exp(k * np.log(positive) - positive - _LOG_FACTORIALS[k])
    tails: Floats = np.where(k < shapes[:, None], terms, 0.0).sum(axis=1)
    return np.where(x > 0, np.minimum(tails, 1.0), 1.0)


@cache
def _hazards() -> tuple[Floats, Floats, Floats]:
    """Return log tails in ascending order and, for each tail, the logs of -log P(no window) / tail
    for 32 tokens and per additional token."""
    rows = [
        (tail, -math.log1p(-short) / tail, math.log((1 - short) / (1 - long)) / _SHORT / tail)
        for tail, short, long in CHANCES
    ]
    rows.append((_FAR, float(LONGEST * _SHORT), float(LONGEST)))
    tails, first, more = np.log(np.array(rows[::-1])).T
    return tails, first, more
