"""Parse a request's body into completions and queries.

The whole body is checked before anything is verified. A single malformed completion gets the whole
request refused, and the refusal names it: nothing is lost or reordered, and no client pays for half
an answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from grpo_guard.core.completion import Completion, CompletionError, shown
from grpo_guard.core.jsonl import InputError, parse_object, row_id
from grpo_guard.server.limits import Limits
from grpo_guard.server.replies import RequestError
from grpo_guard.server.stream import TIMES


@dataclass(frozen=True, slots=True)
class Asked:
    """The completions of a request, or of a part of a stream, and the sender's own ids of them.
    ``first`` is the first one's index in the stream; None if the reply is a single list."""

    completions: list[Completion]
    ids: Sequence[str | int | None]
    first: int | None = None

    def __len__(self) -> int:
        return len(self.completions)

    def part(self, completions: list[Completion], first: int) -> "Asked":
        """Return the part of a stream that begins at index ``first``."""
        return Asked(completions, self.ids[first : first + len(completions)], first)


@dataclass(frozen=True, slots=True)
class Queries:
    """One call of OpenRLHF: lists of equal length; ``labels`` is None if the request has none."""

    queries: list[str]
    prompts: list[str]
    labels: list[Any] | None

    def __len__(self) -> int:
        return len(self.queries)


def completions_in(body: bytes, limits: Limits) -> Asked:
    """Parse the completions of ``{"completions": [...]}``. Raises RequestError 422, with ``index``
    and ``field`` if the error concerns one completion, and 413 for more completions than
    allowed."""
    data = _object(body, limits)
    rows = _list(data, "completions", limits)
    for name in data:
        if name != "completions":
            raise RequestError(422, f"{shown(name)}: expected only completions, got another field")
    read = [_completion(i, row) for i, row in enumerate(rows)]
    return Asked([completion for completion, _ in read], [known for _, known in read])


def stream_in(body: bytes, limits: Limits) -> Asked:
    """Like `completions_in`, for a request answered as a stream, which can hold `TIMES` times as
    many completions."""
    return completions_in(body, replace(limits, completions=TIMES * limits.completions))


def queries_in(body: bytes, limits: Limits) -> Queries:
    """Parse the lists of ``{"query": [str], "prompts": [str], "labels": [...]}``.

    Other fields are meant for other reward servers and are ignored. Without prompts, the whole
    query counts as the completion. Raises RequestError 422, with ``index`` if the error concerns
    one query, and 413 for more queries than allowed.
    """
    data = _object(body, limits)
    queries = _list(data, "query", limits)
    given = {"query": queries, "prompts": [""] * len(queries)}
    for name in ("prompts", "labels"):
        if data.get(name) is None:
            continue
        given[name] = _list(data, name, limits)
        if len(given[name]) != len(queries):
            raise RequestError(
                422, f"{name}: expected {len(queries)}, one per query, got {len(given[name])}"
            )
    # Labels can be anything that the trainer's data set has in that column, even lists and objects.
    for name in ("query", "prompts"):
        for i, value in enumerate(given[name]):
            if not isinstance(value, str):
                got = type(value).__name__
                problem = f"{name}[{i}]: expected a string, got {got}"
                raise RequestError(422, problem, {"index": i})
    return Queries(given["query"], given["prompts"], given.get("labels"))


def _completion(index: int, row: Any) -> tuple[Completion, str | int | None]:
    """Read a completion and the sender's id of it."""
    try:
        known = row_id(row.pop("id", None)) if isinstance(row, dict) else None
        return Completion.from_dict(row, also=("id",)), known
    except CompletionError as error:
        field = "(completion)" if error.field == "(line)" else error.field
        problem = error.problem
    except RecursionError:
        field, problem = "(completion)", "expected an object, got one nested too deeply"
    place = {"index": index, "field": field}
    raise RequestError(422, f"completions[{index}]: {field}: {problem}", place)


def _list(data: dict[str, Any], name: str, limits: Limits) -> list[Any]:
    value = data.get(name)
    if not isinstance(value, list):
        got = type(value).__name__ if name in data else "nothing"
        raise RequestError(422, f"{name}: expected a list, got {got}")
    if len(value) > (most := limits.completions):
        raise RequestError(413, f"{name}: expected at most {most} in one request, got {len(value)}")
    return value


def _object(body: bytes, limits: Limits) -> dict[str, Any]:
    # The framework's own parser is not used: its error replies repeat the input, which may be huge,
    # and a lone surrogate in it makes the server itself fail.
    try:
        return parse_object(body, limits.body_bytes)
    except InputError as error:
        raise RequestError(422, f"(body): {error}") from None
