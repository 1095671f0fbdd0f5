"""Token sequences that were only partly sampled by the policy: they are split into turns, which are
then judged.

Several exchange formats store a rollout as ids plus a mask. A stretch that this trainer's own
engine sampled is a turn, judged in the context of everything before it; the tokens between two
turns come from a tool or a user. If another node chose the mask, two stretches are two turns only
if a special token separates them, as in chat templates. Otherwise they form one completion, in
which rules read the masked tokens as well: a node could mask ``import`` and have only a foreign
module's name trained on, which no rule would recognise on its own.

The trainer applies another node's mask, so log-prob checks can skip the masked tokens. But nothing
proves that a tool wrote them: the node can forge a tool result, or have a single wrong step of an
honest answer trained on. The guard's `environment` detects both.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import groupby, islice
from typing import Any, Final

from grpo_guard.adapters.plain_numbers import number_from
from grpo_guard.adapters.received import Row, read, received, review
from grpo_guard.core.completion import Completion, shown
from grpo_guard.core.detokenizer import Detokenizer
from grpo_guard.core.given import Given, Span
from grpo_guard.core.rollouts import badness
from grpo_guard.core.verdict import Verdict
from grpo_guard.guard import Guard
from grpo_guard.guard.metrics import metrics
from grpo_guard.guard.review import Review

# Number of turns per review. Each turn holds its whole prefix, so reviewing a long rollout in one
# go would take memory quadratic in its length.
TURNS_AT_ONCE: Final = 32
# Maximum number of turns in a sequence. Otherwise, masking every second token would turn each of
# the others into a turn with its whole prefix.
MOST_TURNS: Final = 512
# Number of tokens that rules also read before another node's first token: about a line of code, or
# a sentence.
LINE_TOKENS: Final = 64
_ENDS_A_SENTENCE: Final = re.compile(r"[.:?!>。：？！][\s\x00-\x1f]*\Z")


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
    """Return one completion per turn, or a single empty completion if nothing was sampled.

    In another node's sequence, stretches without a special token between them form one completion,
    in which the tokens between them are given. Such a completion also includes the line that it
    continues (`line_before`). Turns whose text would not show all of their ids are malformed.

    Args:
        ids: Token ids of the prompt, the turns and the tokens between turns, [T].
        drawn: Whether the policy sampled each token, [T].
        own: Whether the trainer's own engine sampled the sequence. If so, its special tokens are
            left out of the text.
        log_probs: Log-probs from the sampler, [T].
        finish_reason: Finish reason of the last turn.
        malformed: A known problem of the sequence, as text.
        claims: The other fields of `Completion`. If ``prompt_trusted`` is set, the mask is trusted
            as well, and each stretch is a turn.
    """
    turns = spans_given([not one for one in drawn], len(drawn)) or ((len(ids), len(ids)),)
    if len(turns) > MOST_TURNS:
        malformed = malformed or f"expected at most {MOST_TURNS} turns, got {len(turns)}"
        turns = turns[-1:]
    fits = log_probs is not None and len(log_probs) == len(ids)
    theirs = not own and claims.get("prompt_trusted") is not True
    joins = theirs and malformed is None and turns[0][0] < turns[0][1]
    spans = _joined(ids, turns, detokenizer) if joins else turns
    rows = []
    for first, end in spans:
        start = line_before(ids, first, detokenizer) if joins else first
        given = spans_given(drawn[start:end], end - start)
        row = received(
            read(detokenizer.plain, ids[:first]),
            read(detokenizer.plain, ids[start:end]) if own else "",
            prompt_ids=ids[:start],
            completion_ids=ids[start:end] if start < end else None,
            sampler_logprobs=log_probs[start:end] if log_probs is not None and fits else None,
            given=Given(given, ((0, 0),) * len(given), masked=True) if given else None,
            finish_reason=finish_reason if (first, end) == spans[-1] else None,
            malformed=malformed,
            detokenizer=None if own else detokenizer,
            decoded=own,
            **claims,
        )
        rows.append(row)
    return rows


def _joined(
    ids: Sequence[int], turns: Sequence[tuple[int, int]], detokenizer: Detokenizer
) -> list[tuple[int, int]]:
    """Join the stretches of another node's sequence unless a special token separates them."""
    joined = [turns[0]]
    for start, end in turns[1:]:
        if detokenizer.hidden.isdisjoint(ids[joined[-1][1] - 1 : start]):
            joined[-1] = joined[-1][0], end
        else:
            joined.append((start, end))
    return joined


def line_before(ids: Sequence[int], first: int, detokenizer: Detokenizer) -> int:
    """Find the start of the line that the token at ``first`` continues, going back at most
    `LINE_TOKENS`.

    A node that chooses the mask chooses where its answer begins: if ``import `` were masked and
    counted as the end of the prompt, rules would read only a foreign module's name. Honest prompts
    end with a special token, a line break, a sentence or a tag; in that case the result is
    ``first``, and the answer is read on its own.
    """
    if _ENDS_A_SENTENCE.search(str(read(detokenizer.raw, ids[max(0, first - 8) : first]))):
        return first
    at = first
    while at > max(0, first - LINE_TOKENS) and ids[at - 1] not in detokenizer.hidden:
        piece = read(detokenizer.raw, ids[at - 1 : at])
        if not isinstance(piece, str) or "\n" in piece:
            break
        at -= 1
    blank = read(detokenizer.raw, ids[at:first])
    return first if not isinstance(blank, str) or not blank.strip() else at


def review_turns(guard: Guard, turns: Iterable[tuple[int, Row]]) -> Review:
    """Review rollouts: each gets the verdict of its worst turn, and is grouped by the prompt of its
    first turn. ``turns`` has all turns in order, each with the index of its rollout (0, 1, 2 ...),
    at least one per rollout. A trainer that knows its groups can set them with `Review.regrouped`.
    Raises AbstainError as `Guard.review` does."""
    found: dict[int, Verdict] = {}
    first: dict[int, Completion] = {}
    left, waited = iter(turns), 0.0
    while batch := list(islice(left, TURNS_AT_ONCE)):
        part = review(guard, [row for _, row in batch])
        waited += part.metrics.get("guard/wait_seconds", 0.0)
        for (i, row), verdict in zip(batch, part.verdicts, strict=True):
            first.setdefault(i, row.completion)
            found[i] = max(found.get(i, verdict), verdict, key=badness)
    worst = [found[i] for i in sorted(found)]
    figures = metrics(worst) | ({"guard/wait_seconds": waited} if worst else {})
    return Review.of([first[i] for i in sorted(found)], worst, figures)


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
    """Decode the text of all turns, and locate the given spans, which were not sampled, in it.
    ``theirs`` means that they are another node's claim. The text then shows special tokens, because
    hidden ones would be trained on or would change what follows. Raises ValueError for more spans
    than `Given` takes."""
    text, chars = detokenizer.turns(ids, given, hide=not theirs, hide_given=not theirs)
    return text, Given(tuple(given), chars, masked=True, known=not theirs)
