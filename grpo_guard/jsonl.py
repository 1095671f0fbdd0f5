"""Reading completions from JSON Lines, with errors that say where."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo_guard.completion import Completion, CompletionError

# One line is one completion; a file without line breaks must not fill the memory.
MAX_LINE_CHARACTERS = 64 * 1024 * 1024


class InputError(ValueError):
    """Bad input; the message reads ``FILE:LINE: field: expected ..., got ...``."""


def read_objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) for each non-empty line.

    Raises:
        InputError: the file cannot be read, or a line is not a JSON object.
    """
    try:
        with path.open(encoding="utf-8") as lines:
            number = 0
            while line := lines.readline(MAX_LINE_CHARACTERS + 1):
                number += 1
                if len(line) > MAX_LINE_CHARACTERS:
                    raise InputError(
                        f"{path}:{number}: (line): expected at most {MAX_LINE_CHARACTERS} "
                        "characters, got more"
                    )
                if line.strip():
                    yield number, _object(path, number, line)
    except OSError as error:
        raise InputError(
            f"{path}: (file): expected a readable file, got {error.strerror}"
        ) from None
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: (file): expected UTF-8 text, got byte {error.object[error.start]:#x} "
            f"at offset {error.start}"
        ) from None


def read_completions(path: Path) -> list[Completion]:
    """All completions of IN.jsonl, in order.

    Raises:
        InputError: a line is malformed; nothing is returned then, so that nothing is scored
            before the whole file is known to be readable.
    """
    completions = []
    for number, data in read_objects(path):
        try:
            completions.append(Completion.from_dict(data))
        except CompletionError as error:
            raise InputError(f"{path}:{number}: {error.field}: {error.problem}") from None
    return completions


def parse_object(text: str) -> dict[str, Any]:
    """Return the JSON object that ``text`` is.

    Raises:
        InputError: it is none; the message says what was expected and, briefly, what was found.
    """
    try:
        data = json.loads(text)
    except RecursionError:
        problem = "a JSON object, got one nested too deeply"
    except ValueError as error:  # JSONDecodeError, and integers of too many digits
        problem = f"a JSON object, got invalid JSON ({error!s:.200})"
    else:
        if isinstance(data, dict):
            return data
        problem = f"a JSON object, got {type(data).__name__}"
    raise InputError(f"expected {problem}")


def _object(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        return parse_object(line)
    except InputError as error:
        raise InputError(f"{path}:{number}: (line): {error}") from None
