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


class Lots:
    """Random choices that no author can predict, so that no text can be placed to go unread."""

    def __init__(self) -> None:
        self._random = random.SystemRandom()

    def shuffled(self, items: Iterable[_T]) -> list[_T]:
        """All of them, in random order."""
        return self.some(items, None)

    def happens(self, share: float) -> bool:
        """True in such a share of calls on average."""
        return self._random.random() < share

    def some(self, items: Iterable[_T], most: int | None) -> list[_T]:
        """At most ``most`` of them, each with the same chance, in random order; None = all.

        No more than these are kept in memory, since an author decides how many items there are.
        """
        chosen = list[_T]()
        for seen, item in enumerate(items):
            if most is None or seen < most:
                chosen.append(item)
            elif (place := self._random.randrange(seen + 1)) < most:
                chosen[place] = item
        self._random.shuffle(chosen)
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
