"""Token sequences that were only partly sampled by the policy: they are split into turns, which are
then judged.

Several exchange formats store a rollout as ids plus a mask. A stretch that this trainer's own
engine sampled is a turn, judged in the context of everything before it; the tokens between two
turns come from a tool or a user. If another node chose the mask, two stretches are two turns only
if a special token separates them, as in chat templates. Otherwise they form one completion, in
which rules read the masked tokens as well: a node could mask ``import`` and have only a foreign
module's name trained on, which no rule would recognise on its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import islice, pairwise
from typing import Any, Final

from grpo_guard.adapters.received import Row, read, received, review
from grpo_guard.adapters.transcript import spans_given
from grpo_guard.core.completion import Completion
from grpo_guard.core.detokenizer import Detokenizer
from grpo_guard.core.given import Given
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


def turns_of(drawn: Sequence[bool]) -> list[tuple[int, int]]:
    """The sampled stretches (``drawn`` is true) as half-open spans, in order."""
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
    """Return one completion per turn, or a single empty completion if nothing was sampled.

    In another node's sequence, stretches without a special token between them form one completion,
    in which the tokens between them are given. Such a completion also includes the line that it
    continues (`line_before`).

    Args:
        ids: Token ids of the prompt, the turns and the tokens between turns, [T].
        drawn: Whether the policy sampled each token, [T].
        detokenizer: Decodes with the policy's tokenizer. Turns whose text would not show all of
            their ids are malformed.
        own: Whether the trainer's own engine sampled the sequence. If so, its special tokens are
            left out of the text.
        log_probs: Log-probs from the sampler, aligned with ``ids``, [T].
        finish_reason: Finish reason of the last turn.
        malformed: A known problem of the sequence, as text.
        claims: The other fields of `Completion`. If ``prompt_trusted`` is set, the mask is trusted
            as well, and each stretch is a turn.
    """
    turns = turns_of(drawn) or [(len(ids), len(ids))]
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
    first turn. A trainer that knows its groups can set them with `Review.regrouped`.

    Args:
        guard: Judges all turns, up to `TURNS_AT_ONCE` in a batch.
        turns: All turns in order, each with the index of its rollout (0, 1, 2 ...); at least one
            turn per rollout.

    Raises:
        AbstainError: the guard abstained too often, see `Guard.review`.
    """
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
