"""Split a batch into parts of equal work, and split a lost part into smaller ones."""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable, Sequence
from typing import Final

from grpo_guard.core.completion import Completion

MOST_TOKENS: Final = 250_000
"""Maximum number of tokens per part. A dead worker loses at most one part, and reading a part takes
at worst a tenth of a rule's time-out."""
MOST_COMPLETIONS: Final = 1_024
CHARACTERS_A_TOKEN: Final = 4


def weight(completion: Completion) -> int:
    """Number of tokens in a completion and its prompt, or characters / `CHARACTERS_A_TOKEN` if that
    is more: ids come from the sender, and a single id for a megabyte of text would mislead."""
    ids = len(completion.completion_ids or ()) + len(completion.prompt_ids or ())
    characters = len(completion.text) + len(completion.prompt_text)
    return 1 + max(ids, characters // CHARACTERS_A_TOKEN)


def balanced(weights: Sequence[int], workers: int) -> list[list[int]]:
    """Split a batch's indices into parts of roughly equal weight: the heaviest completions are
    assigned first, each to the lightest part so far (Graham's LPT, at most 4/3 of the optimum).

    There are as many parts as workers, or a multiple of that if the parts would otherwise be too
    large. Indices ascend within a part, and no part is empty. Each weight must be at least 1.
    """
    if not weights:
        return []
    shares = (sum(weights) / MOST_TOKENS, len(weights) / MOST_COMPLETIONS)
    count = min(len(weights), workers * max(1, math.ceil(max(shares) / workers)))
    parts: list[list[int]] = [[] for _ in range(count)]
    lightest = [(0, i) for i in range(count)]
    for place in sorted(range(len(weights)), key=lambda i: -weights[i]):
        total, i = lightest[0]
        parts[i].append(place)
        heapq.heapreplace(lightest, (total + weights[place], i))
    return [sorted(part) for part in parts]


def halves(places: Sequence[int], authors: Sequence[Hashable]) -> list[list[int]]:
    """Split a part of at least two completions in two, between authors if there are several.

    This quickly separates one author's completions from all others, so that whatever kills workers
    is traced first to its author and then to a single completion. ``authors`` lists the author of
    each completion in the whole batch.
    """
    names = list(dict.fromkeys(authors[place] for place in places))
    if len(names) == 1:
        middle = len(places) // 2
        return [list(places[:middle]), list(places[middle:])]
    first = set(names[: len(names) // 2])
    split = [place for place in places if authors[place] in first]
    return [split, [place for place in places if authors[place] not in first]]
