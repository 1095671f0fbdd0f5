"""Read the JSON file of any kind of profile, with a size limit and errors that name the file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError

# A profile takes a few kilobytes, at most 200; files above this limit are refused before parsing.
MAX_BYTES: Final = 1024 * 1024
_VERSION: Final = re.compile(rb'"format"\s*:\s*(\d{1,9})')
_Model = TypeVar("_Model", bound=BaseModel)


def read_model(path: Path, kind: type[_Model], format: int) -> _Model:
    """Read and validate a profile file of the given kind and version (its field ``format``).

    Raises:
        ValueError: the file cannot be read, is too large, is of another version, or does not match
            ``kind``; the message names the file.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{path}: expected a readable profile, got {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise ValueError(f"{path}: expected at most {MAX_BYTES} bytes of JSON, got more")
    # The version is checked first: a file in another format would fail on many fields without any
    # error pointing to the format.
    version = _VERSION.search(data)
    if version and int(version[1]) != format:
        raise ValueError(f"{path}: format: expected {format}, got {int(version[1])}")
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(str(part) for part in problem["loc"]) or "(file)"
        raise ValueError(f"{path}: {field}: {problem['msg']}") from None
