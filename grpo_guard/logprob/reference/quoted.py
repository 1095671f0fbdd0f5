"""What the prompt says excuses itself: a completion may repeat it however odd it is."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# So many words in a row. Fewer are in any prompt by chance, and an attacker in a swarm that agrees
# on its prompts would build its phrase from them.
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
        said = [match[0].casefold() for match in _WORD.finditer(prompt)]
        # Hashes, because the runs of a long prompt made of long words would be its size many times.
        self._runs = {hash(tuple(said[i : i + words])) for i in range(len(said) - words + 1)}

    def tokens(self, text: str, offsets: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
        """Which tokens lie in a run of words that the prompt has too, shape [n].

        Args:
            text: The completion.
            offsets: [start, end) of each token in characters, in order, shape [n].
        """
        quoted = np.zeros(len(offsets), dtype=np.bool_)
        if not self._runs or not len(offsets):
            return quoted
        found = [(m[0].casefold(), m.start(), m.end()) for m in _WORD.finditer(text)]
        said = [word for word, _, _ in found]
        starts = [start for start, _ in offsets]
        ends = [end for _, end in offsets]
        for i in range(len(said) - self._words + 1):
            if hash(tuple(said[i : i + self._words])) in self._runs:
                first, last = found[i][1], found[i + self._words - 1][2]
                quoted[bisect_right(ends, first) : bisect_left(starts, last)] = True
        return quoted
