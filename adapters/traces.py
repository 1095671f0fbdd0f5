"""What `verifiers` traces and prime-rl rollouts have in common: their turns as completions.

A trace is a tree of messages. What the model wrote (``sampled``) is judged turn by turn, each with
all that stood before it as its prompt: the ids of a whole branch hold what users and tools said,
which no policy drew. A trace is as bad as its worst turn.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from grpo_guard.adapters.received import Row, claimed, read, received
from grpo_guard.adapters.sequences import review_turns
from grpo_guard.completion import content_text
from grpo_guard.guard import Guard, Review


def rows_from(trace: Any, *, round: int | None = None) -> Iterator[Row]:
    """One completion per turn of the model, in order; an empty one where it said nothing.

    ``node`` is read from ``trace.info``, ``task`` is the name of the task's class, and the
    reference is the ``answer`` of the task's data. Turns have no group: those of one trace are no
    samples of one prompt. Where the trace was cut off, by the engine or at a limit of turns or
    tokens, its last turn has ``finish_reason="length"``.
    """
    nodes = trace.nodes
    shared: dict[str, Any] = {
        "node": claimed(trace.info, "node"),
        "round": round,
        "reference": getattr(trace.task.data, "answer", None),
        "task": str(trace.task.type),
    }
    messages = [read(_message, node.message) for node in nodes]
    turns = [i for i, node in enumerate(nodes) if read(bool, node.sampled)]
    ended = "length" if read(bool, getattr(trace, "is_truncated", False)) is True else None
    if not turns:
        yield received(messages, "", **shared, finish_reason=ended)
    for i in turns:
        asked = read(lambda at=i: [messages[j] for j in _before(nodes, at)])
        ids = read(_ids, nodes, i)
        ids = ids if isinstance(ids, dict) else {"completion_ids": ids}
        finish = ended if i == turns[-1] else None
        text = read(said, nodes[i].message)
        yield received(asked, text, **ids, **shared, finish_reason=finish)


def review_of(guard: Guard, trace: Any, *, round: int | None = None) -> Review:
    """The guard's findings on a trace as one verdict, that of its worst turn.

    Raises:
        AbstainError: as `Guard.review`.
    """
    return review_all(guard, [(trace, round)])


def review_all(guard: Guard, traces: Iterable[tuple[Any, int | None]]) -> Review:
    """The guard's findings on traces with their rounds: of each the verdict of its worst turn.

    Raises:
        AbstainError: as `Guard.review`.
    """
    return review_turns(
        guard,
        (
            (i, row)
            for i, (trace, round) in enumerate(traces)
            for row in rows_from(trace, round=round)
        ),
    )


def said(message: Any) -> str:
    """All that a message of the model says: thoughts, content, and calls of tools.

    They are trained on alike, so that poison in one of them must not pass unread.
    """
    parts = [getattr(message, "reasoning_content", None), _text(message)]
    for call in getattr(message, "tool_calls", None) or []:
        parts += [getattr(call, "namespace", None), call.name, call.arguments]
    return "\n".join(part for part in parts if isinstance(part, str) and part)


def _before(nodes: Sequence[Any], i: int) -> list[int]:
    """The path from the root to a node, without it."""
    path: list[int] = []
    at = nodes[i].parent
    while at is not None and len(path) < len(nodes):  # a graph from elsewhere may have a loop
        path.append(at)
        at = nodes[at].parent
    return path[::-1]


def _ids(nodes: Sequence[Any], i: int) -> dict[str, Any]:
    """Ids of prompt and turn, and the engine's log-probs; nothing where they do not fit.

    A turn's node begins with what the template puts before it, which the model did not draw.
    """
    ids, mask = nodes[i].token_ids, [bool(drawn) for drawn in nodes[i].mask]
    start = mask.index(True) if True in mask else len(mask)
    path = _before(nodes, i)
    has_all = all(nodes[j].token_ids for j in path)
    if start == len(mask) or len(mask) != len(ids) or not all(mask[start:]) or not has_all:
        return {}
    log_probs = nodes[i].logprobs
    fits = len(log_probs) == len(ids) - start and not any(math.isnan(x) for x in log_probs)
    return {
        "prompt_ids": [token for j in path for token in nodes[j].token_ids] + ids[:start],
        "completion_ids": ids[start:],
        "sampler_logprobs": log_probs if fits else None,
    }


def _message(message: Any) -> dict[str, Any]:
    """As chat templates have it, with what calls and thoughts say as text."""
    role = str(message.role)
    return {"role": role, "content": said(message) if role == "assistant" else _text(message)}


def _text(message: Any) -> str:
    content = message.content
    if isinstance(content, list | tuple):
        content = [getattr(part, "text", None) for part in content]
    return content_text(content)
