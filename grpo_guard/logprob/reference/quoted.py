"""Excuse what the prompt contains: a completion may repeat it, however odd it is."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Words in a row. Shorter runs are in any prompt by chance, and an attacker in a swarm that shares
# its prompts would build its phrase from them.
QUOTED_WORDS = 3

_WORD = re.compile(r"\w+")


class Quotable:
    """The runs of words of one prompt.

    Args:
        prompt: As text.
        words: Length of a run.
    """

    def __init__(self, prompt: str, words: int = QUOTED_WORDS) -> None:
        self._words = words
        own = [match[0].casefold() for match in _WORD.finditer(prompt)]
        # Hashes, because the runs of a long prompt of long words would take many times its size.
        self._runs = {hash(tuple(own[i : i + words])) for i in range(len(own) - words + 1)}

    def tokens(self, text: str, offsets: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
        """Mark tokens within a run of words that the prompt also contains, shape [n].

        Args:
            text: The completion.
            offsets: [start, end) of each token in characters, in order, shape [n].
        """
        quoted = np.zeros(len(offsets), dtype=np.bool_)
        if not self._runs or not len(offsets):
            return quoted
        found = [(m[0].casefold(), m.start(), m.end()) for m in _WORD.finditer(text)]
        words = [word for word, _, _ in found]
        starts = [start for start, _ in offsets]
        ends = [end for _, end in offsets]
        for i in range(len(words) - self._words + 1):
            if hash(tuple(words[i : i + self._words])) in self._runs:
                first, last = found[i][1], found[i + self._words - 1][2]
                quoted[bisect_right(ends, first) : bisect_left(starts, last)] = True
        return quoted
