"""What several commands read: the completions of a file, the verifiers of a guard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any


def numbered(source: Path) -> Iterator[tuple[int, Any]]:
    from grpo_guard.completion import Completion, CompletionError
    from grpo_guard.jsonl import InputError, read_objects

    for number, data in read_objects(source):
        try:
            yield number, Completion.from_dict(data)
        except CompletionError as error:
            raise InputError(f"{source}:{number}: {error.field}: {error.problem}") from None


def leaves(node: Any) -> Iterator[dict[str, Any]]:
    """The nodes with a type, whatever the combinators around them."""
    if isinstance(node, dict) and "type" in node:
        yield node
    elif isinstance(node, dict):
        for inner in node.values():
            yield from leaves(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from leaves(inner)
