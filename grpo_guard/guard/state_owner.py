"""Say so if a folder of state was written by a guard with other verifiers or options.

Evidence is only comparable under the rules that it was counted by. Several processes with the same
guard, and the same guard after a restart, are what such a folder is for.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from grpo_guard.core.ensemble import inner_verifiers
from grpo_guard.core.files import write_whole
from grpo_guard.core.quoting import shown
from grpo_guard.core.verifier import CompletionVerifier, Composed
from grpo_guard.nodes.store import NodeStore

logger = logging.getLogger("grpo_guard")
FILE: Final = "guard.json"
_LARGEST: Final = 2**20
_MOST_SHOWN: Final = 6


def claim_state(store: NodeStore, verifier: CompletionVerifier) -> None:
    """Note which guard writes to a lasting store; warn if it was another one before.

    Args:
        store: Of the guard.
        verifier: The root of its tree.
    """
    if not store.lasting:
        return
    path, own = store.path.with_name(FILE), _described(verifier)
    before = _read(path)
    if before == own:
        return
    if before is not None and (found := list(_differences(before, own))):
        more = f" and {len(found) - _MOST_SHOWN} more" if len(found) > _MOST_SHOWN else ""
        logger.warning(
            "state: the memory of nodes in %s was written by another guard: %s%s. What both find "
            "is counted together; give each guard a folder of its own, or delete this one to begin "
            "anew",
            path.parent, "; ".join(found[:_MOST_SHOWN]), more,
        )  # fmt: skip
    with suppress(OSError):
        write_whole(path, json.dumps(own, indent=1) + "\n")


def _described(verifier: CompletionVerifier) -> dict[str, dict[str, Any]]:
    """Name of each verifier that is not composed of others -> its plain options.

    Texts are kept as digests, since one may be a key.
    """
    found: dict[str, dict[str, Any]] = {}
    for inner in inner_verifiers(verifier):
        if not isinstance(inner, Composed):
            found.setdefault(inner.name, {}).update(_options(inner))
    return found


def _options(verifier: CompletionVerifier) -> Iterator[tuple[str, Any]]:
    for name, value in vars(verifier).items():
        if name.startswith("_"):
            continue
        if isinstance(value, bool | int | float):
            yield name, value
        elif isinstance(value, str):
            yield name, blake2b(value.encode(errors="replace"), digest_size=8).hexdigest()
        elif name == "severities" and isinstance(value, dict):
            yield from ((f"severity {kind}", str(one)) for kind, one in value.items())


def _read(path: Path) -> dict[str, dict[str, Any]] | None:
    """What the file says; None if there is none that can be read."""
    try:
        if path.stat().st_size > _LARGEST:
            return None
        known = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    valid = isinstance(known, dict) and all(isinstance(one, dict) for one in known.values())
    return known if valid else None


def _differences(
    before: dict[str, dict[str, Any]], now: dict[str, dict[str, Any]]
) -> Iterator[str]:
    gone, added = before.keys() - now.keys(), now.keys() - before.keys()
    for what, names in (("with", gone), ("without", added)):
        if names:
            yield f"{what} {', '.join(shown(name, 40)[1:-1] for name in sorted(names))}"
    for name in sorted(now.keys() & before.keys()):
        for option in sorted(now[name].keys() & before[name].keys()):
            old, new = before[name][option], now[name][option]
            if old != new:
                both = f", {old} in place of {new}" if isinstance(old, int | float) else ""
                yield f"with another {shown(option, 40)[1:-1]} of {name}{both}"
