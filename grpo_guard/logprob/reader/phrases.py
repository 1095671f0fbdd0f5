"""Judge recurring phrases over all the places where they were read."""

from __future__ import annotations

from collections import OrderedDict, deque
from hashlib import blake2b
from statistics import median_low
from typing import Final

FEWEST_PLACES: Final = 3
"""Minimum number of places where a phrase must be read before it is judged."""
_MOST_PLACES: Final = 16
_MOST_PHRASES: Final = 4096


class PhrasePlaces:
    """The p-values of each node's phrases in every place where they were read. Not thread-safe.

    A habit can look foreign in one odd place, and a slogan can look natural in one lucky place, so
    the lower median over places decides. The p-values must not be multiplied, because a phrase's
    places are not independent: a habit that is slightly odd is odd every time.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str | None, bytes], deque[float]] = OrderedDict()

    def add(self, node: str | None, phrase: str, p_value: float) -> None:
        """Record the phrase's p-value in one place."""
        key = (node, _mark(phrase))
        self._known.setdefault(key, deque(maxlen=_MOST_PLACES)).append(p_value)
        self._known.move_to_end(key)
        if len(self._known) > _MOST_PHRASES:
            self._known.popitem(last=False)

    def p_value(self, node: str | None, phrase: str) -> float | None:
        """Return the lower median over the phrase's latest places, or None while fewer than
        `FEWEST_PLACES` have been read."""
        places = self._known.get((node, _mark(phrase)), ())
        return median_low(places) if len(places) >= FEWEST_PLACES else None


def _mark(phrase: str) -> bytes:
    """Return a digest of the phrase, so that authors cannot use up memory with long phrases."""
    plain = " ".join(phrase.casefold().split())
    return blake2b(plain.encode("utf-8", "surrogatepass"), digest_size=16).digest()
