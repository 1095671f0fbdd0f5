"""In what a saved run differs from the one that is asked for, in words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

_SHOWN: Final = 3
_LONGEST: Final = 40


def differences(expected: Mapping[str, Any], found: Any) -> str:
    """The first few fields that differ, ``iterations 3 in place of 2``; empty where none does.

    Args:
        expected: What the run is, as `Spec.identity` gives it.
        found: The same out of a file, which an earlier version may have written.
    """
    if not isinstance(found, dict):
        return "no settings that can be read"
    ours, theirs = _flat(expected), _flat(found)
    names = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
    said = [f"{n} {theirs.get(n, 'unsaid')} in place of {ours.get(n, 'none')}" for n in names]
    more = len(said) - _SHOWN
    return ", ".join(said[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _flat(identity: Mapping[str, Any]) -> dict[str, str]:
    config = identity.get("config")
    fields = {**identity, **(config if isinstance(config, dict) else {})}
    fields.pop("config", None)
    return {str(name): json.dumps(value)[:_LONGEST] for name, value in fields.items()}
