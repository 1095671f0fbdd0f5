"""Show and clear the convictions by recurrence in a store that a run may be using."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from grpo_guard.content.recurrence.record import Conviction, Record
from grpo_guard.content.recurrence.sketch import SETTLED
from grpo_guard.content.recurrence.state import conviction_from, record_to_dict
from grpo_guard.nodes.intake import RECURRENCE_VERIFIER, name_bytes, printable
from grpo_guard.nodes.saved import reading
from grpo_guard.nodes.schema import LedgerError
from grpo_guard.nodes.stored import change_states, is_named, stored_states

NEWCOMERS: Final = "newcomers, counted together"


def stored_convictions(path: Path, node: str | None = None) -> dict[str, list[Conviction]]:
    """Return the convictions of each node, or of one, strongest first, by the node's printable
    name. Joint convictions of all newcomers have the name `NEWCOMERS`. Raises LedgerError if the
    file cannot be read."""
    found: dict[str, list[Conviction]] = {}
    try:
        for state in stored_states(path, RECURRENCE_VERIFIER).values():
            records = [(printable(name_bytes(n)), record) for n, record in _records(state, node)]
            with reading("recurrence"):
                if node is None and isinstance(state, dict):
                    records.append((NEWCOMERS, state["newcomers"]))
                for name, record in records:
                    convicted = [conviction_from(plain) for plain in record["convicted"]]
                    if convicted:
                        found.setdefault(name, []).extend(convicted)
    except ValueError as error:
        raise LedgerError(f"{path}: {error}") from None
    return {name: sorted(each, key=lambda c: c.p_value) for name, each in found.items()}


def release_stored(path: Path, node: str) -> bool:
    """Forget everything that recurrence has counted about one node; return whether it was known.

    The node keeps its seniority: as a newcomer it would be counted together with all others, and
    rejected for phrases of theirs.

    Raises:
        LedgerError: the file is missing, or cannot be read or written.
    """

    def forget(state: Any) -> bool:
        names = [name for name, _ in _records(state, node)]
        for name in names:
            fresh = Record()
            fresh.sketch.prompts, fresh.seen = SETTLED, state["clock"]
            state["nodes"][name] = record_to_dict(fresh)
        return bool(names)

    return change_states(path, RECURRENCE_VERIFIER, forget)


def _records(state: Any, node: str | None) -> Iterator[tuple[str, Any]]:
    """Yield the records of all nodes, or of the one that an operator names."""
    nodes = state.get("nodes") if isinstance(state, dict) else None
    if not isinstance(nodes, dict):
        return
    for name, record in list(nodes.items()):
        if node is None or is_named(name, node):
            yield name, record
