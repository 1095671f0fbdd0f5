"""Excuse anything that also occurs in the prompt: a completion may repeat it, however odd."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

# Number of consecutive words. Shorter runs recur in any prompt by chance, and an attacker who knows
# the swarm's prompts could build a phrase from them.
QUOTED_WORDS = 3

_WORD = re.compile(r"\w+")


def quoted(prompt: str, text: str, offsets: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
    """Mark the tokens inside a run of words that also occurs in the prompt.

    Args:
        prompt: The prompt.
        text: The text of the completion.
        offsets: Characters [start, end) of each token in ``text``, in order.

    Returns:
        Boolean mask, shape [n].
    """
    found = np.zeros(len(offsets), dtype=np.bool_)
    # Hashes, because storing the runs of a long prompt would take many times its size.
    known = {run for run, _, _ in _runs(prompt)}
    if not known or not len(offsets):
        return found
    starts, ends = zip(*offsets, strict=True)
    for run, first, last in _runs(text):
        if run in known:
            found[bisect_right(ends, first) : bisect_left(starts, last)] = True
    return found


def _runs(text: str) -> Iterator[tuple[int, int, int]]:
    """Yield each run of words as its hash and characters [start, end)."""
    words = [(m[0].casefold(), m.start(), m.end()) for m in _WORD.finditer(text)]
    for i in range(len(words) - QUOTED_WORDS + 1):
        run = words[i : i + QUOTED_WORDS]
        yield hash(tuple(word for word, _, _ in run)), run[0][1], run[-1][2]
