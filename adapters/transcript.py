"""Several turns as one text, from their tokens and the mask that a trainer trains by.

Of a row that another node sent the mask is what that node says of itself. The trainer masks by it,
so that log-probs need not be looked at there. But it is not known to be a tool's words: whoever
chooses what is masked can forge a result, or have one wrong step of an honest answer trained alone.
The guard's `environment` finds both.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from grpo_guard.adapters.plain_numbers import number_from
from grpo_guard.completion import shown
from grpo_guard.detokenizer import Detokenizer
from grpo_guard.given import Given, Span


def mask_from(value: Any, length: int) -> list[int]:
    """The first ``length`` of a mask of 0 and 1, of a list, a tuple, an array or a tensor.

    Raises:
        ValueError: it is none. Whoever sends "0" for 0, or NaN, would have another mask read here
            than the one that is trained by.
    """
    if getattr(value, "ndim", None) == 1:
        value = value[:length].tolist()
    if not isinstance(value, list | tuple):
        raise ValueError(f"mask: expected a list, got {shown(value)}")
    found = [m if isinstance(m, bool) else number_from(m) for m in value[:length]]
    if not all(m in (0, 1) for m in found):
        raise ValueError("mask: expected 0 or 1 for each token")
    return [int(m or 0) for m in found]


def spans_given(mask: Sequence[int], length: int) -> tuple[Span, ...]:
    """Half-open spans of the first ``length`` tokens where the mask is 0; what it lacks is 1."""
    own = [bool(m) for m in mask[:length]]
    spans, start = [], 0
    for drawn, run in groupby(own):
        end = start + sum(1 for _ in run)
        if not drawn:
            spans.append((start, end))
        start = end
    return tuple(spans)


def masked_in(mask: Sequence[int], length: int, *, theirs: bool = True) -> Given | None:
    """What a row has masked, for a `Detokenizer` to find its place in the text; None = nothing.

    Args:
        mask: 0 where a token does not train.
        length: Tokens of the completion.
        theirs: Another node says so, not the trainer.

    Raises:
        ValueError: more spans than `Given` takes.
    """
    spans = spans_given(mask, length)
    return Given(spans, ((0, 0),) * len(spans), True, not theirs) if spans else None


def transcript(
    detokenizer: Detokenizer, ids: Sequence[int], given: Sequence[Span], *, theirs: bool
) -> tuple[str, Given]:
    """The text of all turns, and which of it was given.

    Args:
        detokenizer: Of the policy.
        ids: Of the completion, [n].
        given: Spans of these that nobody sampled.
        theirs: Another node says so, not the trainer. Then special tokens are shown: unseen, they
            would be trained on, or change what follows.

    Raises:
        ValueError: more spans than `Given` takes.
    """
    text, chars = detokenizer.turns(ids, given, hide=not theirs, hide_given=not theirs)
    return text, Given(tuple(given), chars, masked=True, known=not theirs)
