"""Recurring phrases, decided over all the places in which a reader has met them."""

from __future__ import annotations

from collections import OrderedDict, deque
from hashlib import blake2b
from statistics import median_low
from typing import Final

FEWEST_PLACES: Final = 3
"""Places of a phrase that must be read before it is judged."""
_MOST_PLACES: Final = 16
_MOST_PHRASES: Final = 4096


class PhrasePlaces:
    """p-values of each node's phrases, by place. Not safe to share between threads.

    A habit in one odd place may look foreign, and a slogan in one lucky place may not: the lower
    median over places decides. A product of the p-values would not do, since the places of one
    phrase are no independent evidence: a habit that is a little odd is so each time.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str | None, bytes], deque[float]] = OrderedDict()

    def add(self, node: str | None, phrase: str, p_value: float) -> None:
        """Remember one place."""
        key = (node, _mark(phrase))
        self._known.setdefault(key, deque(maxlen=_MOST_PLACES)).append(p_value)
        self._known.move_to_end(key)
        if len(self._known) > _MOST_PHRASES:
            self._known.popitem(last=False)

    def p_value(self, node: str | None, phrase: str) -> float | None:
        """Lower median over the latest places; None while fewer than `FEWEST_PLACES` are known."""
        places = self._known.get((node, _mark(phrase)), ())
        return median_low(places) if len(places) >= FEWEST_PLACES else None


def _mark(phrase: str) -> bytes:
    """A digest, since authors decide how long a phrase is."""
    plain = " ".join(phrase.casefold().split())
    return blake2b(plain.encode("utf-8", "surrogatepass"), digest_size=16).digest()
