"""Save and load all memories of one guard, keyed by their position in its verifier tree."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Protocol

from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.nodes.saved import reading, require_format

FORMAT: Final = 1
_LEDGER: Final = "ledger"
_LENGTHS: Final = "lengths"
_IDENTITY: Final = "identity"


class Remembers(Protocol):
    """An object that remembers things about nodes and can export them as plain JSON values."""

    def state_dict(self) -> dict[str, Any]:
        """Everything it remembers."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace everything remembered with what `state_dict` returned."""


def state_of(
    verifier: CompletionVerifier,
    ledger: object,
    lengths: object = None,
    identity: object = None,
) -> dict[str, Any]:
    """Their states, as plain JSON values.

    Args:
        verifier: The root of the tree.
        ledger: The guard's own ledger, or None.
        lengths: The memory of its length scaling, or None.
        identity: The memory of pinned keys and recent signatures, or None.
    """
    memories = _memories(verifier, ledger, lengths, identity)
    states = {place: memory.state_dict() for place, memory in memories}
    return {"format": FORMAT, "memories": states}


def load_state(
    verifier: CompletionVerifier,
    ledger: object,
    state: dict[str, Any],
    lengths: object = None,
    identity: object = None,
) -> None:
    """Hand each memory its part of ``state``.

    Raises:
        ValueError: the state is of a guard with other verifiers, or one part is malformed. Parts
            before the malformed one are already loaded.
    """
    with reading("guard"):
        require_format(state, FORMAT)
    states = state.get("memories")
    memories = dict(_memories(verifier, ledger, lengths, identity))
    if not isinstance(states, dict) or states.keys() != memories.keys():
        got = sorted(states) if isinstance(states, dict) else type(states).__name__
        raise ValueError(
            f"state: expected memories {', '.join(memories) or '(none)'}, got {got!s:.200}; is it "
            "of a guard with other verifiers?"
        )
    for place, memory in memories.items():
        memory.load_state_dict(states[place])


def stores_of(*owners: object) -> set[Path]:
    """Files that verifiers, ledgers and memories write to, including members and attributes."""
    found: set[Path] = set()
    seen: set[int] = set()
    waiting = list(owners)
    while waiting:
        owner = waiting.pop()
        if id(owner) in seen:
            continue
        seen.add(id(owner))
        if isinstance(owner, list | tuple):
            waiting += owner
            continue
        path = getattr(owner, "store_path", None)
        if isinstance(path, Path):
            found.add(path)
        if isinstance(owner, CompletionVerifier) or _remembers(owner):
            waiting += getattr(owner, "__dict__", {}).values()
    return found


def _memories(
    verifier: CompletionVerifier, ledger: object, lengths: object, identity: object
) -> Iterator[tuple[str, Remembers]]:
    for place, memory in ((_LEDGER, ledger), (_LENGTHS, lengths), (_IDENTITY, identity)):
        if _remembers(memory):
            yield place, memory  # type: ignore[misc]
    yield from _of(verifier, "verifier")


def _of(verifier: Any, place: str) -> Iterator[tuple[str, Remembers]]:
    """Walk the ``members`` of composite verifiers, depth first."""
    if _remembers(verifier):
        yield place, verifier
    for i, member in enumerate(getattr(verifier, "members", ())):
        yield from _of(member, f"{place}.{i}")


def _remembers(thing: object) -> bool:
    return callable(getattr(thing, "state_dict", None)) and callable(
        getattr(thing, "load_state_dict", None)
    )
