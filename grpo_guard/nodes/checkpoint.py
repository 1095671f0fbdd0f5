"""Save and load all memories of one guard, keyed by their position in its verifier tree."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol, TypeGuard

from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.nodes.saved import reading, require_format

FORMAT: Final = 1


class Remembers(Protocol):
    """An object that keeps per-node state and can export it as plain JSON values."""

    def state_dict(self) -> dict[str, Any]:
        """Return everything the object remembers."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace everything remembered with what `state_dict` returned."""


def memories_of(verifier: CompletionVerifier, **own: object) -> dict[str, Remembers]:
    """Collect the objects that keep per-node state: the guard's ``own`` objects under their names,
    and verifiers under their position in the tree. Objects without a state, and None, are left
    out."""
    return {
        place: one for place, one in (*own.items(), *_tree(verifier, "verifier")) if _remembers(one)
    }


def state_of(memories: Mapping[str, Remembers]) -> dict[str, Any]:
    """Return the states of all memories as plain JSON values."""
    states = {place: memory.state_dict() for place, memory in memories.items()}
    return {"format": FORMAT, "memories": states}


def load_state(memories: Mapping[str, Remembers], state: dict[str, Any]) -> None:
    """Hand each memory its part of ``state``. Raises ValueError if the state belongs to a guard
    with different verifiers, or one part is malformed. Any parts before the malformed part have
    already been loaded."""
    with reading("guard"):
        require_format(state, FORMAT)
    states = state.get("memories")
    if not isinstance(states, dict) or states.keys() != memories.keys():
        got = sorted(states) if isinstance(states, dict) else type(states).__name__
        raise ValueError(
            f"state: expected memories {_named(memories) or '(none)'}, got {got!s:.200}; is it "
            "of a guard with other verifiers?"
        )
    for place, memory in memories.items():
        memory.load_state_dict(states[place])


def _named(memories: Mapping[str, Remembers]) -> str:
    """Format the positions of the memories, with the name of each verifier."""
    own = {place: getattr(memory, "name", "") for place, memory in memories.items()}
    return ", ".join(f"{place} ({name})" if name else place for place, name in own.items())


def stores_of(*owners: object) -> set[Path]:
    """Find the files that verifiers, ledgers and memories write to, including the files of their
    members and attributes."""
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


def _tree(verifier: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Yield a verifier and all of its ``members``, depth first, each with its position."""
    yield place, verifier
    for i, member in enumerate(getattr(verifier, "members", ())):
        yield from _tree(member, f"{place}.{i}")


def _remembers(thing: object) -> TypeGuard[Remembers]:
    return callable(getattr(thing, "state_dict", None)) and callable(
        getattr(thing, "load_state_dict", None)
    )
