"""Find the sentences of a completion that are eligible for reading, and sample among them."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

from grpo_guard.core.completion import Completion
from grpo_guard.core.given import Span, between
from grpo_guard.logprob.reader.spans import SYMBOL, sentences

_T = TypeVar("_T")
_SAYS_NOTHING: Final = re.compile(rf"(?:(?![{SYMBOL}])[\W_])+")


# No author can predict these choices and place text where it will go unread.
_LOTS: Final = random.SystemRandom()


def happens(share: float) -> bool:
    """Return True with probability ``share``."""
    return _LOTS.random() < share


def drawn(items: Iterable[_T], most: int | None = None) -> list[_T]:
    """Draw up to ``most`` items (None for all) with equal probability, in random order.

    No more items than that are held in memory, because authors control how many there are.
    """
    chosen = list[_T]()
    for seen, item in enumerate(items):
        if most is None or seen < most:
            chosen.append(item)
        elif (place := _LOTS.randrange(seen + 1)) < most:
            chosen[place] = item
    _LOTS.shuffle(chosen)
    return chosen


def own_sentences(completion: Completion) -> Iterator[Span]:
    """Yield [start, end) of each sentence written by the completion's author, in order.

    Text that verifiably came from a tool or user is skipped, because it cannot be the author's
    poison. Only the first of several identical sentences is returned: it explains its copies, and
    an author could otherwise send copies to make other sentences unlikely to be drawn.
    """
    verified, text = completion.verified_spans, completion.text
    seen = set[int]()
    for begin, end in between(verified.chars if verified else (), len(text)):
        turn = text[begin:end]
        for first, last in sentences(turn):
            wording = hash(_SAYS_NOTHING.sub("", turn[first:last].casefold()))
            if wording not in seen:
                seen.add(wording)
                yield begin + first, begin + last
