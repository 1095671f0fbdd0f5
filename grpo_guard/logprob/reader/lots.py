"""Find the sentences of a completion that may be read, and choose among them at random."""

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


# No author can predict these choices, so no text can be placed to go unread.
_LOTS: Final = random.SystemRandom()


def happens(share: float) -> bool:
    """Return True with the probability ``share``."""
    return _LOTS.random() < share


def drawn(items: Iterable[_T], most: int | None = None) -> list[_T]:
    """Draw at most ``most`` items (None for all), each with equal probability, in random order.

    No more items than that are held in memory, since an author decides how many items there are.
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
    """Yield [start, end) of the sentences that the completion's author wrote, in order.

    Text that verifiably came from a tool or user is skipped, since it is not the author's poison.
    Only the first of several equal sentences is returned: the first explains its copies, and by
    sending copies an author could make it unlikely for another sentence to be drawn.
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
