r"""Bets on the tokens at announced places, fair to any node that samples as declared.

Let f(u) = b u^(b - 1) with 0 < b < 1, which has mean 1 for uniform u. Let L be the mass of all
tokens less likely than the chosen token, and m the mass of the chosen token plus any that tie with
it. The bet pays the mean of f over [L, L + m]::

    e = ((L + m)^b - L^b) / m

Over the policy's distribution the mean of e telescopes to exactly 1. Using a random share of m, as
the scan does, would be just as fair but would win less, by Jensen's inequality; here nothing is
drawn at random, so identical answers share no luck. Two things can only lower the mean:

* *Truncation.* If the sampler keeps a top set of mass Z, the mean is (1 - (1 - Z)^b) / Z <= 1,
  because u^b is concave.
* *Drift.* If no token's probability under the sampler exceeds e^d times its probability under the
  verifier, the same holds for sets. So f is evaluated at min(1, u e^d), but never below the
  profile's ``least_tail``.

The factor at a place is 1 - s + s e, for a few exponents b and stakes s, and separately for each
kind of place: an attacker uses one kind, and honest draws at the other kinds must not dilute the
evidence. The combinations of kind, b and s are the *columns*. Within a column, factors multiply
over places; which places occur, and how many, can depend on everything drawn before. Columns are
averaged only at the end (`nodes/e_process.py`): if they were averaged batch by batch, poison that
leaves only a small trace each time would be diluted by the average each time.

One node's answers to the same prompt often begin alike. If several answers have the same tokens
before a place, their factors there are averaged instead of multiplied: a node that uses a seed
twice draws the same tokens twice, and honest luck must not count double.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b
from itertools import product
from typing import Final

import numpy as np

from grpo_guard.logprob.encoded import Encoded
from grpo_guard.logprob.profile import DriftProfile
from grpo_guard.logprob.scan import DRIFT_SHARE
from grpo_guard.logprob.shares import Places
from grpo_guard.logprob.stats import Floats, TokenStats

CONTEXT: Final = 96  # number of characters read before each token

# Every quantifier is bounded and the text has at most `CONTEXT` characters, so the cost per token
# is constant even for hostile text.
_NUMERAL: Final = r"\d[\d.,]{0,15}"
_OPERATOR: Final = (
    r"(?:[-+*/×÷·−xX^]|\\(?:times|cdot|div)|plus|minus|times|divided by|multiplied by)"
)
_RESULT: Final = re.compile(
    rf"""(?: [\d)}}\]%a-z] \s{{0,2}} {_OPERATOR} \s{{0,2}} [$€£(]{{0,2}}
           (?: {_NUMERAL} | [a-z]{{2,9}} )  (?: [ ][a-z]{{1,12}} )? [)}}\]%$]{{0,2}} )
        \s{{0,2}} (?: =|≈ | \b(?:is|are|equals?|makes?)\b ) \s{{0,2}}
        [$€£]? -? (?: {_NUMERAL} )? \Z""",
    re.VERBOSE,
)
_NUMERAL_END, _SIGNS = "0123456789.,", " \n\t-$€£"
_EQUALS: Final = ("=", "≈", "is", "are", "equal", "equals", "make", "makes")
# A name can span several tokens, and several names can follow one another.
_IMPORT: Final = re.compile(r"\n[ \t]{0,40}(?:import|from)(?:[ \t][\w., \t]{0,60})?\Z")
_AFTER: Final = re.compile(
    r"(?: </answer> | \\boxed\{[^{}\n]{1,40}\} | \#\#\#\#[ ]{0,2}[^\s]{1,20} ) [\s.$*]{0,4} \Z",
    re.VERBOSE,
)
_BEHIND, _CLOSING = " \n\t.$*", (">", "}")
_SENTENCE: Final = re.compile(r"""(?:[.!?…。！？:]["'”’)*]{0,2}|\n|<\w{1,16}>)\s{0,4}\Z""")


class Announced(IntEnum):
    """The kind of place announced by the text before a token.

    Poison pays off in few places: the result after ``a op b =``, the start of a sentence, the name
    in an import, the text after the answer. Only the tokens *before* a place decide whether it is
    one, so an honest token there is an ordinary draw. If the token itself or later ones decided
    too, a bet would use each draw twice and convict honest nodes. Authors can avoid such places,
    but the result of a wrong sum with an equals sign always follows the equals sign.
    """

    NOTHING = 0
    RESULT = 1
    SENTENCE = 2
    IMPORT = 3
    AFTER_ANSWER = 4


def announced(places: Places, ids: Sequence[int]) -> list[Announced]:
    """Classify each token of a completion by the text before it, [n] -> [n]."""
    return [announced_after(before) for before in places.before(ids, CONTEXT, start="\n")]


def announced_after(text: str) -> Announced:
    r"""Return what ``text`` announces next; a completion is treated as if it followed a line break.

    >>> announced_after("\nso 3 + 4 ="), announced_after("\nDone."), announced_after("\nTom has")
    (<Announced.RESULT: 1>, <Announced.SENTENCE: 2>, <Announced.NOTHING: 0>)
    """
    # Cheap string checks come before the patterns, because few tokens are in such a place.
    if text.rstrip(_NUMERAL_END).rstrip(_SIGNS).endswith(_EQUALS) and _RESULT.search(text):
        return Announced.RESULT
    line = text[text.rfind("\n") + 1 :].lstrip(" \t")
    if line.startswith(("import", "from")) and _IMPORT.search(text):
        return Announced.IMPORT
    if (text.rstrip(_BEHIND)[-1:] in _CLOSING or "####" in text) and _AFTER.search(text):
        return Announced.AFTER_ANSWER
    return Announced.SENTENCE if _SENTENCE.search(text) else Announced.NOTHING


EXPONENTS: Final = (0.2, 0.5)
STAKES: Final = (0.5, 0.1)
KINDS: Final = tuple(kind for kind in Announced if kind)
COLUMNS: Final = tuple(product(KINDS, EXPONENTS, STAKES))
"""The kind of place, the exponent b and the stake s of each column."""
# If a lump is thinner than this share of its tail, float64 cannot resolve the difference.
_THIN: Final = 1e-9


@dataclass(frozen=True, slots=True)
class PlaceBets:
    prefixes: tuple[bytes, ...]  # digest of the prompt and tokens before each place, [m]
    places: tuple[int, ...]  # token indices, in ascending order, [m]
    log_factors: Floats
    """Logarithm of each column's factor at each place, [m, COLUMNS]; 0 in columns of another
    kind."""


def place_bets(
    encoded: Encoded,
    kinds: Sequence[Announced],
    stats: TokenStats,
    profile: DriftProfile,
    temperature: float,
) -> PlaceBets:
    """Return the bets on the tokens drawn by a completion's author, given what the text before each
    token announces; none are made with an infinite ``tau``."""
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
    """Return each column's log e-value over one node's completions, [COLUMNS]."""
    of_prefix = defaultdict[bytes, list[Floats]](list)
    for bet in bets:
        for prefix, row in zip(bet.prefixes, bet.log_factors, strict=True):
            of_prefix[prefix].append(row)
    total = np.zeros(len(COLUMNS))
    for rows in of_prefix.values():
        total += np.logaddexp.reduce(rows, axis=0) - math.log(len(rows))
    return total


def _mean_payoff(tail: Floats, lump: Floats, exponent: float, drift: float, least: float) -> Floats:
    """Return the mean of f(min(1, max(u e^d, least))) over u in [tail - lump, tail], [m] -> [m]."""
    top = np.clip(tail, 0.0, 1.0)
    bottom = np.maximum(top - lump, 0.0)
    grown = math.exp(drift)
    # f is smallest at the upper end, so a lump too thin to integrate gets just that value.
    at_top = exponent * np.clip(top * grown, least, 1.0) ** (exponent - 1)
    area = _area(top, exponent, grown, least) - _area(bottom, exponent, grown, least)
    width = np.maximum(top - bottom, np.finfo(float).tiny)
    payoff: Floats = np.where(width > _THIN * top, area / width, at_top)
    return payoff


def _area(u: Floats, exponent: float, grown: float, least: float) -> Floats:
    """Return the integral of f(min(1, max(v e^d, least))) over v in [0, u], [m] -> [m]."""
    flat = exponent * least ** (exponent - 1) * np.minimum(u, least / grown)
    curved = (np.clip(u * grown, least, 1.0) ** exponent - least**exponent) / grown
    area: Floats = flat + curved + exponent * np.maximum(u - 1 / grown, 0.0)
    return area


def _prefixes(whole: Encoded, places: Sequence[int]) -> Iterator[bytes]:
    """Yield a digest of the prompt and the tokens before each place, in ascending order."""
    prompt = np.asarray([len(whole.prompt_ids), *whole.prompt_ids], np.int64)
    digest = blake2b(prompt.tobytes(), digest_size=16)
    tokens, start = np.asarray(whole.completion_ids, np.int64), 0
    for place in places:
        digest.update(tokens[start:place].tobytes())
        start = place
        yield digest.copy().digest()
