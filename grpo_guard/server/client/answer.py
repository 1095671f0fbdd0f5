"""Parse a server's answer as untrusted input."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from grpo_guard.core.completion import Completion, shown
from grpo_guard.core.jsonl import InputError, parse_object
from grpo_guard.core.quoting import one_line
from grpo_guard.core.verdict import Cause, Finding, Outcome, Verdict

MAX_DEPTH: Final = 16
"""Maximum nesting depth of a verdict's members."""
MOST_FINDINGS: Final = 1000
"""Maximum number of findings, and of members, per verdict."""
_MOST_TEXT: Final = 2000


class AnswerError(ValueError):
    """The answer does not fit the request; the message gives what was expected and what arrived."""


def verdicts_in(
    body: bytes, batch: Sequence[Completion], name: str, *, most: int, took: float
) -> list[Verdict]:
    """Parse one verdict per completion, in order, from the body of a reply. Each verdict has the
    ``name`` of the verifier that asked, and the server's verdict as its member.

    Args:
        most: Maximum size of the body in bytes, which also bounds the number of values
            (`jsonl.parse_object`): 68 MB of empty lists took 1.7 GB once parsed.
        took: Seconds until the answer arrived. Longer times claimed by a verdict are cut to this
            value: a single 1e300 would spoil every sum in a log.

    Raises:
        AnswerError: there is not exactly one verdict per completion, in order, or a verdict is
            malformed.
    """
    try:
        rows = parse_object(body, most).get("verdicts")
    except InputError as error:
        raise AnswerError(f"(body): {error}") from None
    if not isinstance(rows, list) or len(rows) != len(batch):
        got = len(rows) if isinstance(rows, list) else "none"
        raise AnswerError(f"verdicts: expected {len(batch)}, one per completion, got {got}")
    return [_own_verdict(i, row, batch[i], name, took) for i, row in enumerate(rows)]


def _own_verdict(index: int, row: Any, completion: Completion, name: str, took: float) -> Verdict:
    where = f"verdicts[{index}]"
    place = row.get("index") if isinstance(row, dict) else None
    if type(place) is not int or place != index:
        raise AnswerError(f"{where}.index: expected {index}, got {shown(place)}")
    try:
        theirs = _verdict(row, completion, MAX_DEPTH, took)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise AnswerError(f"{where}: expected a verdict, got {one_line(repr(error))}") from None
    return replace(theirs, verifier=name, members=(theirs,))


def _verdict(row: Any, completion: Completion, depth: int, took: float) -> Verdict:
    if not isinstance(row, Mapping) or not depth:
        raise ValueError("an object of bounded depth was expected")
    members = _list(row.get("members"))
    return Verdict(
        Outcome(row["outcome"]),
        Cause(row["cause"]),
        _text(row["verifier"]),
        p_value=None if row["p_value"] is None else _number(row["p_value"]),
        findings=tuple(_finding(f, completion) for f in _list(row["findings"])),
        seconds=min(max(0.0, _number(row.get("seconds") or 0.0)), took),
        members=tuple(_verdict(member, completion, depth - 1, took) for member in members),
    )


def _finding(row: Any, completion: Completion) -> Finding:
    tokens = completion.completion_ids
    return Finding(
        _text(row["kind"])[:80],
        _text(row["message"]),
        _span(row.get("char_span"), len(completion.text)),
        _span(row.get("token_span"), None if tokens is None else len(tokens)),
    )


def _span(value: Any, length: int | None) -> tuple[int, int] | None:
    """Check that a span lies inside the completion, because adapters mask tokens by spans."""
    if value is None:
        return None
    start, end = value
    if type(start) is not int or type(end) is not int or not 0 <= start <= end:
        raise ValueError("a span was expected")
    if length is not None and end > length:
        raise ValueError("a span within the completion was expected")
    return start, end


def _list(value: Any) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list) or len(value) > MOST_FINDINGS:
        raise ValueError("a list of bounded length was expected")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a text was expected")
    return one_line(value, _MOST_TEXT)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("a number was expected")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("a finite number was expected")
    return number
