"""A sequence of ids of which the policy drew some: its turns as completions, and its verdict.

Several exchanges keep a rollout as ids with a mask beside them. What was drawn in one stretch is a
turn, judged behind all that stood before it; what stands between is a tool's or a user's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice, pairwise
from typing import Any, Final

from grpo_guard.adapters.received import Row, read, received, review
from grpo_guard.completion import Completion
from grpo_guard.detokenizer import Detokenizer
from grpo_guard.guard import Guard
from grpo_guard.metrics import metrics
from grpo_guard.review import Review
from grpo_guard.rollouts import badness
from grpo_guard.verdict import Verdict

# Reviewed at a time: each turn holds its whole prefix, and all of a long rollout at once would take
# memory by the square of its length.
TURNS_AT_ONCE: Final = 32
# A mask of every second token would make as many turns, each with its prefix.
MOST_TURNS: Final = 512


def turns_of(drawn: Sequence[bool]) -> list[tuple[int, int]]:
    """The stretches that were drawn, half-open, in order."""
    edges = [i for i in range(1, len(drawn)) if drawn[i] != drawn[i - 1]]
    bounds = [0, *edges, len(drawn)]
    return [(a, b) for a, b in pairwise(bounds) if a < b and drawn[a]]


def rows_from_ids(
    ids: Sequence[int],
    drawn: Sequence[bool],
    detokenizer: Detokenizer,
    *,
    own: bool = False,
    log_probs: Sequence[float] | None = None,
    finish_reason: Any = None,
    malformed: str | None = None,
    **claims: Any,
) -> list[Row]:
    """One completion per turn, at least one; an empty one where nothing was drawn.

    Args:
        ids: Of prompt, turns and what stands between them, [T].
        drawn: Which the policy drew, [T].
        detokenizer: Of the policy. A turn whose text would not show all of its ids is malformed.
        own: The trainer's own engine drew it: its special tokens are left out of the text.
        log_probs: The sampler's, aligned with ``ids``, [T].
        finish_reason: Of the last turn.
        malformed: What is known to be wrong already.
        claims: The other fields of `Completion`.
    """
    turns = turns_of(drawn) or [(len(ids), len(ids))]
    if len(turns) > MOST_TURNS:
        malformed = malformed or f"expected at most {MOST_TURNS} turns, got {len(turns)}"
        turns = turns[-1:]
    fits = log_probs is not None and len(log_probs) == len(ids)
    return [
        received(
            read(detokenizer.plain, ids[:start]),
            read(detokenizer.plain, ids[start:end]) if own else "",
            prompt_ids=ids[:start],
            completion_ids=ids[start:end] if start < end else None,
            sampler_logprobs=log_probs[start:end] if log_probs is not None and fits else None,
            finish_reason=finish_reason if (start, end) == turns[-1] else None,
            malformed=malformed,
            detokenizer=None if own else detokenizer,
            decoded=own,
            **claims,
        )
        for start, end in turns
    ]


def review_turns(guard: Guard, turns: Iterable[tuple[int, Row]]) -> Review:
    """The guard's findings on rollouts: of each the verdict of its worst turn.

    A rollout's group is the prompt of its first turn; a trainer that knows its groups says so with
    `Review.regrouped`.

    Args:
        guard: Looks at all turns, up to `TURNS_AT_ONCE` in a batch.
        turns: Each with the number of its rollout, 0, 1, 2 ... in order, none without a turn.

    Raises:
        AbstainError: as `Guard.review`.
    """
    found: dict[int, Verdict] = {}
    first: dict[int, Completion] = {}
    left = iter(turns)
    while batch := list(islice(left, TURNS_AT_ONCE)):
        verdicts = review(guard, [row for _, row in batch]).verdicts
        for (i, row), verdict in zip(batch, verdicts, strict=True):
            first.setdefault(i, row.completion)
            found[i] = max(found.get(i, verdict), verdict, key=badness)
    worst = [found[i] for i in sorted(found)]
    return Review.of([first[i] for i in sorted(found)], worst, metrics(worst))
