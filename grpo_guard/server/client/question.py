"""Encode completions for a server, and split them into requests that it accepts."""

import json
from collections.abc import Iterator, Sequence

from grpo_guard.core.completion import Completion
from grpo_guard.core.prompts import prompt_key


def line_of(completion: Completion) -> str:
    """Encode a completion for a server, as JSON in ASCII. Its ``given`` spans are sent as a claim,
    which the server's environment may confirm. Raises TypeError or ValueError if the prompt or the
    metadata cannot be represented in JSON."""
    return json.dumps(completion.to_dict())


def requests(
    batch: Sequence[Completion], rows: dict[int, str], *, most: int, bytes: int
) -> Iterator[list[int]]:
    """Yield the indices of the encoded completions (``rows``) in the batch, request by request,
    with at most ``most`` completions and ``bytes`` in each body. A server compares all completions
    in a request, so completions of one prompt and round share one, wherever they fall in the batch,
    unless there are too many."""
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
