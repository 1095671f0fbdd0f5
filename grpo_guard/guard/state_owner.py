"""Warn if a guard with other verifiers or options wrote to a state folder.

Evidence is comparable only if it was counted by the same rules. A state folder is meant for several
processes with the same guard, and for the same guard after a restart.
"""

import inspect
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, TypeAlias

from grpo_guard.core.ensemble import inner_verifiers
from grpo_guard.core.files import write_whole
from grpo_guard.core.jsonl import InputError, parse_object
from grpo_guard.core.quoting import shown, unquoted
from grpo_guard.core.verifier import CompletionVerifier, Composed
from grpo_guard.nodes.store import NodeStore

logger = logging.getLogger("grpo_guard")
FILE: Final = "written-by.json"
FORMAT: Final = "grpo-guard written-by 1"
_LARGEST: Final = 2**20
_MOST_SHOWN: Final = 6
_PLACES: Final = {"device", "timeout"}  # these options change no evidence

Described: TypeAlias = dict[str, dict[str, Any]]
_held = ContextVar[list[tuple[NodeStore, CompletionVerifier]] | None]("held claims", default=None)


@contextmanager
def claims_held() -> Iterator[None]:
    """Delay `claim_state` until the end of this context, and skip it if something raises, so that a
    refused guard never writes to a store."""
    held: list[tuple[NodeStore, CompletionVerifier]] = []
    token = _held.set(held)
    try:
        yield
    finally:
        _held.reset(token)
    for store, verifier in held:
        claim_state(store, verifier)


def claim_state(store: NodeStore, verifier: CompletionVerifier) -> None:
    """Record which guard, given the root of its verifiers, writes to a persistent store; warn if
    another guard did so before."""
    if not store.lasting:
        return
    if (held := _held.get()) is not None:
        held.append((store, verifier))
        return
    path, own = store.path.with_name(FILE), _described(verifier)
    before = _read(path)
    if before == own or (before is None and os.path.lexists(path)):  # not our file
        return
    if before and (found := list(_differences(before, own))):
        more = f" and {len(found) - _MOST_SHOWN} more" if len(found) > _MOST_SHOWN else ""
        logger.warning(
            "state: the memory of nodes in %s was written by another guard: %s%s. What both find "
            "is counted together; give each guard a folder of its own, or delete this one to begin "
            "anew",
            path.parent, "; ".join(found[:_MOST_SHOWN]), more,
        )  # fmt: skip
    with suppress(OSError):
        write_whole(path, json.dumps({"format": FORMAT, "verifiers": own}, indent=1) + "\n")


def _described(verifier: CompletionVerifier) -> Described:
    """Map the name of each verifier that is not composed of others to its plain options.

    String options are replaced with digests, because a string could be a key.
    """
    found: Described = {}
    for inner in inner_verifiers(verifier):
        if not isinstance(inner, Composed):
            found.setdefault(inner.name, {}).update(_options(inner))
    return found


def _options(verifier: CompletionVerifier) -> Iterator[tuple[str, Any]]:
    arguments, own = _arguments(type(verifier)), vars(verifier)
    for name in sorted((arguments & own.keys()) - _PLACES):
        value = own[name]
        if isinstance(value, bool | int | float):
            yield name, value
        elif isinstance(value, str):
            yield name, blake2b(value.encode(errors="replace"), digest_size=8).hexdigest()
    severities = own.get("severities")
    if "severity" in arguments and isinstance(severities, dict):
        yield from ((f"severity {kind}", str(one)) for kind, one in severities.items())


def _arguments(kind: type) -> set[str]:
    """Names of the parameters of a verifier's constructor, and of the base constructors it passes
    options on to. Attributes with other names are derived, and can differ between ranks."""
    names: set[str] = set()
    for base in kind.__mro__:
        if "__init__" not in vars(base):
            continue
        try:
            parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
        except (TypeError, ValueError):  # a constructor that is not written in Python
            break
        names |= {p.name for p in parameters}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return names


def _read(path: Path) -> Described | None:
    """The verifiers in the note; {} if the note is damaged, None if it is missing or not ours."""
    try:
        with path.open("rb") as file:
            note = parse_object(file.read(_LARGEST + 1), _LARGEST)
    except (OSError, InputError):
        return None
    if note.get("format") != FORMAT:
        return None
    known = note.get("verifiers")
    valid = isinstance(known, dict) and all(isinstance(one, dict) for one in known.values())
    return known if valid else {}


def _differences(before: Described, now: Described) -> Iterator[str]:
    gone, added = before.keys() - now.keys(), now.keys() - before.keys()
    for what, names in (("with", gone), ("without", added)):
        if names:
            yield f"{what} {', '.join(unquoted(name, 40) for name in sorted(names))}"
    for name in sorted(now.keys() & before.keys()):
        for option in sorted(now[name].keys() & before[name].keys()):
            old, new = before[name][option], now[name][option]
            if old != new:
                both = f", {shown(old)} in place of {new}" if isinstance(old, int | float) else ""
                yield f"with another {unquoted(option, 40)} of {name}{both}"
