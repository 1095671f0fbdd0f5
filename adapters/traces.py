"""Traces of `verifiers` and rollouts of prime-rl, read as one completion per branch.

A trace is a tree of messages. Each branch is one completion, from the model's first turn
(``sampled``) to its last, in which user and tool messages are given. Turns that also belong to an
earlier branch count as part of the prompt. A trace gets the verdict of its worst branch.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from grpo_guard.adapters.plain_numbers import log_probs_from
from grpo_guard.adapters.received import Row, claimed, read, received
from grpo_guard.adapters.sequences import MOST_TURNS, line_before, review_turns, spans_given
from grpo_guard.core.detokenizer import Detokenizer
from grpo_guard.core.given import Given, Span
from grpo_guard.core.prompts import content_text
from grpo_guard.guard import Guard, Review

# Maximum number of messages over all branches. Each branch copies its prompt, so a long
# conversation with a thousand endings would take time and memory quadratic in its length.
MOST_NODES: Final = 500_000


def rows_from(
    trace: Any, *, round: int | None = None, detokenizer: Detokenizer | None = None
) -> Iterator[Row]:
    """Yield one completion per branch of a trace, in order: an empty completion if the model wrote
    nothing, and a malformed one if there are too many branches to judge. With a detokenizer, its
    text is decoded from the tokens; ``round`` is the version of the policy that wrote the trace.

    ``node`` is read from ``trace.info``, ``task`` is the name of the task's class, and the
    reference is the ``answer`` of the task's data. Tool messages in a trace with a node are that
    node's claim. Branches have no group, because the branches of a trace are not samples of the
    same prompt. If the trace was cut off, by the engine or by a turn or token limit, its last
    branch has ``finish_reason="length"``.

    The trainer trains on the tokens selected by the masks of the trace's messages. So a trace is
    malformed if a message that the model did not write has such tokens, or if tokens and masks do
    not match.
    """
    nodes = trace.nodes
    shared: dict[str, Any] = {
        "node": claimed(trace.info, "node"),
        # A trace's single reward trains all of its branches.
        "rollout": getattr(trace, "id", None),
        "round": round,
        "reference": getattr(trace.task.data, "answer", None),
        "task": str(trace.task.type),
        # Another node's trace includes its own prompt.
        "prompt_trusted": claimed(trace.info, "node") is None,
    }
    messages = [read(_message, node.message) for node in nodes]
    sampled = [read(bool, node.sampled) is True for node in nodes]
    parents = [read(_parent, node, len(nodes)) for node in nodes]
    done = [False] * len(nodes)
    ends = _ends(parents, sampled)
    ended = "length" if read(bool, getattr(trace, "is_truncated", False)) is True else None
    paths = _paths(parents, ends)
    problem = _problem(nodes, sampled, ends, paths)
    if paths is None or problem is not None:
        yield received("", "", **shared, finish_reason=ended, malformed=problem)
        return
    for end, path in zip(ends, paths, strict=True):
        first = next(at for at, i in enumerate(path) if sampled[i] and not done[i])
        for i in path:
            done[i] = True
        branch = _Branch(nodes, path[:first], path[first:], sampled)
        asked: Any = [messages[j] for j in path[:first]]
        if parents[path[0]] is not None:  # an `Unread`: the messages before it are unknown
            asked = parents[path[0]]
        own = _text_and_ids(branch, detokenizer, known=shared["node"] is None)
        yield received(asked, **own, **shared, finish_reason=ended if end == ends[-1] else None)
    if not ends:
        yield received(messages, "", **shared, finish_reason=ended)


def _problem(
    nodes: Sequence[Any],
    sampled: Sequence[bool],
    ends: Sequence[int],
    paths: Sequence[Sequence[int]] | None,
) -> str | None:
    """The reason why a trace as a whole is malformed; None if it is well-formed."""
    if paths is None:
        return f"more than {MOST_TURNS} branches, or {MOST_NODES} messages in them"
    if any(sampled) and not ends:
        return "a loop of turns"
    others = [node for node, own in zip(nodes, sampled, strict=True) if not own]
    if any(read(_trains, node) is not False for node in others):
        return "trained tokens in a message that the model did not write"
    return None


def _text_and_ids(
    branch: "_Branch", detokenizer: Detokenizer | None, *, known: bool
) -> dict[str, Any]:
    """Keywords for `received`: a branch's text, ids and given spans. ``known``: the trace is the
    trainer's own, so the authors of its messages are known."""
    ids = read(branch.ids, None if known else detokenizer)
    ids = ids if isinstance(ids, dict) else {"completion_ids": ids}
    tokens = ids.pop("given", ())
    text, given, reader = read(branch.text), None, None
    if isinstance(text, tuple):
        text, chars = text
        if detokenizer is not None and "completion_ids" in ids:
            reader, chars = detokenizer, [(0, 0)] * len(tokens)
        elif ids and len(chars) != len(tokens):
            ids["malformed"] = "untrained tokens within a turn"
        given = read(Given, tokens, tuple(chars), True, known)
    return {"text": text, "given": given, "detokenizer": reader, **ids}


def review_all(guard: Guard, traces: Iterable[tuple[Any, int | None]]) -> Review:
    """Review traces, each given with its round; a trace gets the verdict of its worst branch.
    Raises AbstainError as `Guard.review` does."""
    return review_turns(
        guard,
        (
            (i, row)
            for i, (trace, round) in enumerate(traces)
            for row in rows_from(trace, round=round, detokenizer=guard.detokenizer)
        ),
    )


def _message_text(message: Any) -> str:
    """The full text of a model's message, including its reasoning and tool calls, because all of it
    is trained on."""
    parts = [getattr(message, "reasoning_content", None), _text(message)]
    for call in getattr(message, "tool_calls", None) or []:
        parts += [getattr(call, "namespace", None), call.name, call.arguments]
    return "\n".join(part for part in parts if isinstance(part, str) and part)


def drawn_log_probs(node: Any) -> list[float] | None:
    """The engine's log-probs of the tokens that it sampled in a turn; None unless there is one for
    each token. Raises ValueError if log-probs are invalid or outnumber the tokens, because a
    trainer would turn them into a tensor."""
    given, most = node.logprobs, len(node.mask)
    count = 0 if given is None else len(given)
    found = log_probs_from(given, count) if 0 < count <= most else None
    if count and found is None:
        raise ValueError("logprobs: expected one per sampled token")
    return found if count == sum(map(bool, node.mask)) else None


def _parent(node: Any, count: int) -> int | None:
    """The index of the parent node; None for the root."""
    at = node.parent
    if at is not None and not (type(at) is int and 0 <= at < count):
        raise IndexError("parent: not a node")
    return at


def _paths(parents: Sequence[Any], ends: Sequence[int]) -> list[list[int]] | None:
    """For each branch, the indices of its nodes from the root on; None if there are too many
    branches or messages."""
    if len(ends) > MOST_TURNS:
        return None
    paths, room = [], MOST_NODES
    for end in ends:
        path = [end]
        while isinstance(at := parents[path[-1]], int) and len(path) <= len(parents):  # or a loop
            path.append(at)
        room -= len(path)
        if room < 0:
            return None
        paths.append(path[::-1])
    return paths


def _ends(parents: Sequence[Any], sampled: Sequence[bool]) -> list[int]:
    """Indices of the model's turns that are not followed by another model turn."""
    passed = [False] * len(parents)
    for i in (i for i, own in enumerate(sampled) if own):
        at = parents[i]
        while isinstance(at, int) and not passed[at]:
            passed[at] = True
            at = parents[at]
    return [i for i, own in enumerate(sampled) if own and not passed[i]]


@dataclass(frozen=True, slots=True)
class _Branch:
    """A branch: ``before`` holds the nodes before the model's first turn, and ``path`` the nodes
    from that turn to the model's last."""

    nodes: Sequence[Any]
    before: Sequence[int]
    path: Sequence[int]
    sampled: Sequence[bool]

    def text(self) -> tuple[str, list[Span]]:
        """The text of the branch and, for each of the model's turns except the last, the span of
        text by others that follows the turn."""
        text, chars = _message_text(self.nodes[self.path[0]].message), []
        start = len(text)
        for i in self.path[1:]:
            message = self.nodes[i].message
            if self.sampled[i]:
                chars.append((start, len(text)))
                text += _message_text(message)
                start = len(text)
            else:
                text += _text(message)
        return text, chars

    def ids(self, theirs: Detokenizer | None = None) -> dict[str, Any]:
        """The ids of the prompt and the branch, the given spans (all tokens that the masks exclude,
        including those of the chat template), and the engine's log-probs. Empty if no message of
        the branch has ids; ``malformed`` with a reason if ids and masks do not match. ``theirs``
        decodes another node's ids, whose mask may count the beginning of a line that it wrote as
        the end of the prompt."""
        on = [self.nodes[i] for i in (*self.before, *self.path)]
        # Other iterables can be endless at no cost to the sender; verifiers itself uses lists.
        if not all(isinstance(x, list) for node in on for x in (node.token_ids, node.mask)):
            raise TypeError("token_ids, mask: expected lists")
        if not any(node.token_ids for node in on):
            return {}
        masks = [[bool(drawn) for drawn in self.nodes[i].mask] for i in self.path]
        lengths = [len(self.nodes[i].token_ids) for i in self.path]
        sizes = [len(mask) for mask in masks]
        if not all(node.token_ids for node in on) or not any(masks[0]) or sizes != lengths:
            return {"malformed": "token_ids and masks do not match"}
        prompt = [token for i in self.before for token in self.nodes[i].token_ids]
        ids, drawn, log_probs = list[int](), list[bool](), list[float]()
        for i, mask in zip(self.path, masks, strict=True):
            ids += self.nodes[i].token_ids
            drawn += mask
            log_probs += _log_probs(drawn_log_probs(self.nodes[i]) or [], mask)
        at = drawn.index(True)
        if theirs is not None:
            at = line_before(ids, at, theirs)
        return {
            "prompt_ids": prompt + ids[:at],
            "completion_ids": ids[at:],
            "given": spans_given(drawn[at:], len(drawn) - at),
            "sampler_logprobs": log_probs[at:] if len(log_probs) == len(ids) else None,
        }


def _log_probs(found: Sequence[float], drawn: Sequence[bool]) -> list[float]:
    """Spread ``found`` over all tokens of a message, with 0 for tokens that were not sampled; []
    unless ``found`` has one log-prob for each sampled token."""
    left = iter(found)
    return [next(left) if own else 0.0 for own in drawn] if len(found) == sum(drawn) else []


def _trains(node: Any) -> bool:
    return not isinstance(node.mask, list) or any(node.mask)  # other iterables can be endless


def _message(message: Any) -> dict[str, Any]:
    """The message in the form chat templates expect, with tool calls and reasoning as text."""
    role = str(message.role)
    return {
        "role": role,
        "content": _message_text(message) if role == "assistant" else _text(message),
    }


def _text(message: Any) -> str:
    content = message.content
    if isinstance(content, list | tuple):
        content = [getattr(part, "text", None) for part in content]
    return content_text(content)
