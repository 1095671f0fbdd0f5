"""Multi-turn completions: one text for all turns, from their tokens and the training mask.

In a row from another node, the mask is that node's claim. The trainer applies the mask, so log-prob
checks can skip the masked tokens. But nothing proves that a tool wrote them: a node that chooses
the mask can forge a tool result, or have a single wrong step of an honest answer trained on. The
guard's `environment` detects both.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from grpo_guard.adapters.plain_numbers import number_from
from grpo_guard.core.completion import shown
from grpo_guard.core.detokenizer import Detokenizer
from grpo_guard.core.given import Given, Span


def mask_from(value: Any, length: int) -> list[int]:
    """Return the first ``length`` values of a 0/1 mask, from a list, a tuple, an array or a tensor.
    Raises ValueError for anything else: by sending "0" instead of 0, or NaN, a sender could make
    the guard read a different mask from the one used in training."""
    if getattr(value, "ndim", None) == 1:
        value = value[:length].tolist()
    if not isinstance(value, list | tuple):
        raise ValueError(f"mask: expected a list, got {shown(value)}")
    found = [m if isinstance(m, bool) else number_from(m) for m in value[:length]]
    if not all(m in (0, 1) for m in found):
        raise ValueError("mask: expected 0 or 1 for each token")
    return [int(m or 0) for m in found]


def spans_given(mask: Sequence[int], length: int) -> tuple[Span, ...]:
    """Half-open spans of the first ``length`` tokens in which the mask is 0; tokens beyond the end
    of the mask count as 1."""
    own = [bool(m) for m in mask[:length]]
    spans, start = [], 0
    for drawn, run in groupby(own):
        end = start + sum(1 for _ in run)
        if not drawn:
            spans.append((start, end))
        start = end
    return tuple(spans)


def masked_in(mask: Sequence[int], length: int, *, theirs: bool = True) -> Given | None:
    """The masked spans (mask 0) of a row of ``length`` tokens, which a `Detokenizer` later locates
    in the row's text; None if nothing is masked. ``theirs`` means that the mask is another node's
    claim. Raises ValueError for more spans than `Given` takes."""
    spans = spans_given(mask, length)
    return Given(spans, ((0, 0),) * len(spans), True, not theirs) if spans else None


def transcript(
    detokenizer: Detokenizer, ids: Sequence[int], given: Sequence[Span], *, theirs: bool
) -> tuple[str, Given]:
    """Decode the text of all turns, and locate the given spans in it.

    Args:
        detokenizer: Decodes with the policy's tokenizer.
        ids: Token ids of the completion, [n].
        given: Spans of the ids that were not sampled.
        theirs: Whether the spans are another node's claim rather than the trainer's. If so, the
            text shows special tokens, because hidden ones would be trained on or would change what
            follows.

    Raises:
        ValueError: there are more spans than `Given` takes.
    """
    text, chars = detokenizer.turns(ids, given, hide=not theirs, hide_given=not theirs)
    return text, Given(tuple(given), chars, masked=True, known=not theirs)
