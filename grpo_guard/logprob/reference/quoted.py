"""Excuse what the prompt contains: a completion may repeat it, however odd it is."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

# Words in a row. Shorter runs recur in any prompt by chance, and an attacker who knows the swarm's
# prompts could build a phrase from them.
QUOTED_WORDS = 3

_WORD = re.compile(r"\w+")


def quoted(prompt: str, text: str, offsets: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
    """Mark the tokens that lie in a run of words which the prompt also contains.

    Args:
        prompt: The prompt.
        text: The text of the completion.
        offsets: Characters [start, end) of each token in ``text``, in order.

    Returns:
        Boolean mask, shape [n].
    """
    found = np.zeros(len(offsets), dtype=np.bool_)
    # Hashes, because the runs of a long prompt of long words would take many times its size.
    known = {run for run, _, _ in _runs(prompt)}
    if not known or not len(offsets):
        return found
    starts, ends = zip(*offsets, strict=True)
    for run, first, last in _runs(text):
        if run in known:
            found[bisect_right(ends, first) : bisect_left(starts, last)] = True
    return found


def _runs(text: str) -> Iterator[tuple[int, int, int]]:
    """Yield the hash and the characters [start, end) of each run of words."""
    words = [(m[0].casefold(), m.start(), m.end()) for m in _WORD.finditer(text)]
    for i in range(len(words) - QUOTED_WORDS + 1):
        run = words[i : i + QUOTED_WORDS]
        yield hash(tuple(word for word, _, _ in run)), run[0][1], run[-1][2]
