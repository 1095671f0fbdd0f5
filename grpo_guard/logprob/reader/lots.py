"""The sentences of a completion that may be read, and the lots that choose among them."""

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
    """True in such a share of calls on average."""
    return _LOTS.random() < share


def drawn(items: Iterable[_T], most: int | None = None) -> list[_T]:
    """At most ``most`` of them, each with the same chance, in random order; None = all.

    No more than these are kept in memory, since an author decides how many items there are.
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
    """[start, end) of the sentences that its author wrote, in order.

    Text that verifiably came from a tool or user is skipped, since it is not the author's poison.
    Only the first of several equal sentences is returned: it explains its copies, and with copies
    an author could keep the lots from drawing it.
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
