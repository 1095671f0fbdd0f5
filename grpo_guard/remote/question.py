"""Completions as a server is asked about them, in requests that it takes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from grpo_guard.completion import Completion
from grpo_guard.prompts import prompt_key

_FIELDS = [field.name for field in dataclasses.fields(Completion)]
# What goes without saying; servers of an earlier release do not know all fields.
_USUAL: Final[Mapping[str, Any]] = {"metadata": {}, "prompt_trusted": True}


def row_of(completion: Completion) -> str:
    """The completion as a server reads it: JSON, in ASCII.

    What is given is sent as a claim, which the server's environment may confirm.

    Raises:
        TypeError, ValueError: a prompt or metadata hold what JSON cannot.
    """
    row: dict[str, Any] = {}
    for name in _FIELDS:
        value = getattr(completion, name)
        if value is not None and value != _USUAL.get(name):
            row[name] = value
    if completion.given is not None:
        given = completion.given
        row["given"] = {"tokens": given.tokens, "chars": given.chars}
    return json.dumps(row)


def requests(
    batch: Sequence[Completion], rows: dict[int, str], *, most: int, bytes: int
) -> Iterator[list[int]]:
    """Places in the batch, request by request; answers to one prompt go together.

    A server compares the completions of a request, so those of one prompt and round are sent in
    one, wherever in the batch they stand; unless they are too many for any.

    Args:
        batch: The completions.
        rows: By place, those that can be sent.
        most: Completions of a request.
        bytes: Of its body.
    """
    groups: dict[object, list[int]] = {}
    for place in rows:
        completion = batch[place]
        groups.setdefault((completion.round, prompt_key(completion.prompt)), []).append(place)
    chosen: list[int] = []
    size = 0
    for group in groups.values():
        weight = sum(len(rows[place]) + 2 for place in group)
        if chosen and (len(chosen) + len(group) > most or size + weight > bytes):
            yield chosen
            chosen, size = [], 0
        for place in group:
            weight = len(rows[place]) + 2
            if chosen and (len(chosen) == most or size + weight > bytes):
                yield chosen
                chosen, size = [], 0
            chosen.append(place)
            size += weight
    if chosen:
        yield chosen
