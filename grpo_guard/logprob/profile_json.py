"""Reading a profile's JSON file, of whatever kind: bounded, versioned, with errors that name it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError

# A profile is a few kilobytes, 200 at most; a file that is not one must not be parsed.
MAX_BYTES: Final = 1024 * 1024
_VERSION: Final = re.compile(rb'"format"\s*:\s*(\d{1,9})')
_Model = TypeVar("_Model", bound=BaseModel)


def read_model(path: Path, kind: type[_Model], format: int) -> _Model:
    """The file's content.

    Args:
        path: Of the file.
        kind: What it must hold.
        format: Its version, the number in its field ``format``.

    Raises:
        ValueError: the file cannot be read, is too large, of another version, or holds something
            else; with its name.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{path}: expected a readable profile, got {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise ValueError(f"{path}: expected at most {MAX_BYTES} bytes of JSON, got more")
    # Asked first: a file of another format fails in many fields, and none would say so.
    version = _VERSION.search(data)
    if version and int(version[1]) != format:
        raise ValueError(f"{path}: format: expected {format}, got {int(version[1])}")
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(str(part) for part in problem["loc"]) or "(file)"
        raise ValueError(f"{path}: {field}: {problem['msg']}") from None
