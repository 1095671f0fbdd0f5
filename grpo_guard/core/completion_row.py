"""A completion as a row of JSON lines, or of a request."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

# Defaults are left out, because servers of an earlier release do not know all fields.
_USUAL: Final[Mapping[str, Any]] = {"metadata": {}, "prompt_trusted": True}


def row_of(completion: Any) -> dict[str, Any]:
    """Return the fields of a `Completion` that `Completion.from_dict` reads. The ``given`` spans
    become a claim, which the reader's environment may confirm."""
    row: dict[str, Any] = {}
    for field in fields(completion):
        value = getattr(completion, field.name)
        if value is not None and value != _USUAL.get(field.name):
            row[field.name] = value
    if completion.given is not None:
        row["given"] = {"tokens": completion.given.tokens, "chars": completion.given.chars}
    return row
