r"""Bets on the tokens at announced places, which are fair to whoever samples as declared.

Let f(u) = b u^(b - 1) with 0 < b < 1, which has mean 1 for uniform u. The tokens that are less
likely than the chosen one have mass L; the chosen one and those that tie with it have mass m. The
bet pays the mean of f over [L, L + m]::

    e = ((L + m)^b - L^b) / m

Over the policy's distribution the mean of e telescopes to exactly 1. A random share of m, as the
scan takes it, would be as fair and would win less, by Jensen's inequality; here nothing is drawn,
so equal answers share no luck. Two things can only lower the mean:

* *Truncation.* If the sampler keeps a top set of mass Z, the mean is (1 - (1 - Z)^b) / Z <= 1,
  since u^b is concave.
* *Drift.* Where no token's probability in the sampler's numbers is more than e^d times ours, no
  set's is. So f is taken of min(1, u e^d), and of no u below the profile's ``least_tail``.

At a place the factor is 1 - s + s e, for a few b and stakes s, and for each kind of place by
itself: an attacker uses one kind, and honest draws at the others must not dilute it. These are the
*columns*. Within a column factors multiply over places; which places come, and how many, may depend
on all that was drawn before. Columns are averaged only at the end (`nodes/fortunes.py`): averaged
batch by batch, poison that shows a little each time would pay for the average each time.

Answers of one node to one prompt often begin alike. Where several of them have the same tokens in
front of a place, the factors there are averaged and not multiplied: a node that uses one seed twice
draws the same twice, and no honest luck counts double.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import product
from typing import Final

import numpy as np

from grpo_guard.logprob.announced import Announced
from grpo_guard.logprob.encoded import Encoded
from grpo_guard.logprob.profile import DriftProfile
from grpo_guard.logprob.scan import DRIFT_SHARE
from grpo_guard.logprob.stats import Floats, TokenStats

EXPONENTS: Final = (0.2, 0.5)
STAKES: Final = (0.5, 0.1)
KINDS: Final = tuple(kind for kind in Announced if kind)
COLUMNS: Final = tuple(product(KINDS, EXPONENTS, STAKES))
"""The kind of place, b and s of each column."""
# A lump thinner than this part of its tail is no difference that float64 could take.
_THIN: Final = 1e-9


@dataclass(frozen=True, slots=True)
class PlaceBets:
    """The bets on one completion.

    Args:
        prefixes: Digest of prompt and tokens in front of each place, [m].
        places: Token numbers, rising, [m].
        log_factors: Logarithm of each column's factor at each place, [m, COLUMNS]; 0 where the
            column is of another kind.
    """

    prefixes: tuple[bytes, ...]
    places: tuple[int, ...]
    log_factors: Floats


def place_bets(
    encoded: Encoded,
    kinds: Sequence[Announced],
    stats: TokenStats,
    profile: DriftProfile,
    temperature: float,
) -> PlaceBets:
    """The bets on a completion's tokens at announced places.

    Args:
        encoded: The tokens that its author drew, [n].
        kinds: What is announced of each token, from the tokens before it alone; [n].
        stats: Of the tokens, [n].
        profile: What drift may do; with an infinite ``tau`` nothing is bet.
        temperature: The declared one.
    """
    drift = DRIFT_SHARE * profile.tau / temperature
    of_kind = np.asarray(kinds, np.int64)
    where = np.flatnonzero(of_kind if math.isfinite(drift) else np.zeros_like(of_kind))
    chosen, of_kind = stats.at(where), of_kind[where]
    lump = np.minimum((chosen.ties + 1) * np.exp(chosen.logprob), chosen.tail_mass)
    factors = np.ones((len(where), len(COLUMNS)))
    for column, (kind, exponent, stake) in enumerate(COLUMNS):
        e = _mean_payoff(chosen.tail_mass, lump, exponent, drift, profile.least_tail)
        factors[:, column] = np.where(of_kind == kind, 1 - stake + stake * e, 1.0)
    whole = encoded.whole or encoded
    before = _prefixes(whole, encoded.places[where].tolist())
    return PlaceBets(tuple(before), tuple(where.tolist()), np.log(factors))


def log_e_of(bets: Sequence[PlaceBets]) -> Floats:
    """Logarithm of each column's e-value of one node's completions, [COLUMNS]."""
    of_prefix = defaultdict[bytes, list[Floats]](list)
    for bet in bets:
        for prefix, row in zip(bet.prefixes, bet.log_factors, strict=True):
            of_prefix[prefix].append(row)
    total = np.zeros(len(COLUMNS))
    for rows in of_prefix.values():
        total += np.logaddexp.reduce(rows, axis=0) - math.log(len(rows))
    return total


def _mean_payoff(tail: Floats, lump: Floats, exponent: float, drift: float, least: float) -> Floats:
    """Mean of f(min(1, max(u e^d, least))) over u in [tail - lump, tail], [m] -> [m]."""
    top = np.clip(tail, 0.0, 1.0)
    bottom = np.maximum(top - lump, 0.0)
    grown = math.exp(drift)
    # At the upper end f is least: no more than that is claimed of a lump too thin to integrate.
    at_top = exponent * np.clip(top * grown, least, 1.0) ** (exponent - 1)
    area = _area(top, exponent, grown, least) - _area(bottom, exponent, grown, least)
    width = np.maximum(top - bottom, np.finfo(float).tiny)
    payoff: Floats = np.where(width > _THIN * top, area / width, at_top)
    return payoff


def _area(u: Floats, exponent: float, grown: float, least: float) -> Floats:
    """The integral of f(min(1, max(v e^d, least))) over v in [0, u], [m] -> [m]."""
    flat = exponent * least ** (exponent - 1) * np.minimum(u, least / grown)
    curved = (np.clip(u * grown, least, 1.0) ** exponent - least**exponent) / grown
    area: Floats = flat + curved + exponent * np.maximum(u - 1 / grown, 0.0)
    return area


def _prefixes(whole: Encoded, places: Sequence[int]) -> Iterator[bytes]:
    """Digest of prompt and tokens in front of each place; places rise."""
    prompt = np.asarray([len(whole.prompt_ids), *whole.prompt_ids], np.int64)
    digest = blake2b(prompt.tobytes(), digest_size=16)
    tokens, start = np.asarray(whole.completion_ids, np.int64), 0
    for place in places:
        digest.update(tokens[start:place].tobytes())
        start = place
        yield digest.copy().digest()
