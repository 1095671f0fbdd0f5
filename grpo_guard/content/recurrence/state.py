"""A swarm's counts as plain JSON values; convictions in a store that a run may be using."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Final

from grpo_guard.content.recurrence.features import kind_of
from grpo_guard.content.recurrence.seats import MOST_CONVICTIONS, Conviction, Record
from grpo_guard.content.recurrence.sketch import MOST_ANSWERS, SETTLED, WINDOW, Sketch
from grpo_guard.content.recurrence.swarm import Swarm
from grpo_guard.nodes.intake import RECURRENCE_VERIFIER, name_bytes, printable
from grpo_guard.nodes.saved import number, reading, require_format, text, whole
from grpo_guard.nodes.schema import LedgerError
from grpo_guard.nodes.stored import change_states, is_stored_as, stored_states

FORMAT: Final = 3
_NUMBERS: Final = ("past_prompts", "before_prompts", "lost", "prompts")
_LOOKS: Final = ("looks", "next_look", "next_long", "opened", "seen")
_COUNTS: Final = ("hits", "total", "other_hits", "other_total")
_CONVICTION: Final = {field.name for field in fields(Conviction)}


def dump(swarm: Swarm) -> dict[str, Any]:
    """Return all of the swarm's records as plain JSON values."""
    seats = swarm.seats
    return {
        "format": FORMAT,
        "clock": seats.clock,
        "salt": seats.salt.hex(),
        "nodes": {node: record_to_dict(record) for node, record in seats.records.items()},
        "pools": [[number, record_to_dict(record)] for number, record in seats.pools.items()],
        "newcomers": record_to_dict(seats.newcomers),
    }


def load(swarm: Swarm, state: dict[str, Any]) -> frozenset[str]:
    """Replace the swarm's records with those in ``state`` and return the learnt habits it contains.

    Raises:
        ValueError: ``state`` does not have the form returned by `dump`, or has more nodes than the
            swarm can follow.
    """
    seats = swarm.seats
    with reading("state"):
        require_format(state, FORMAT)
        records = {text(node): _restored(r) for node, r in state["nodes"].items()}
        if len(records) > seats.max_nodes:
            raise ValueError(f"{len(records)} nodes, but max_nodes is {seats.max_nodes}")
        pools = {whole(number): _restored(r, shared=True) for number, r in state["pools"]}
        newcomers = _restored(state["newcomers"], shared=True)
        clock, salt = whole(state["clock"]), bytes.fromhex(state["salt"])
        habits = frozenset(map(text, state["habits"]))
        if any(number >= seats.max_nodes for number in pools) or not 0 < len(salt) <= 64:
            raise ValueError("pools or salt of another verifier")
    seats.records, seats.pools, seats.newcomers = records, pools, newcomers
    seats.clock, seats.salt = clock, salt
    return habits


def record_to_dict(record: Record) -> dict[str, Any]:
    """Return one record as plain JSON values."""
    sketch = record.sketch
    return {
        **{name: getattr(sketch, name) for name in _NUMBERS},
        **{name: getattr(record, name) for name in _LOOKS},
        "window": [[key.hex(), sketch.draws[key], fs] for key, fs in sketch.window.items()],
        "before_answers": sketch.before_answers,
        "before": dict(sketch.before),
        "past": dict(sketch.past),
        "convicted": [asdict(c) for c in record.convicted.values()],
    }


def _restored(plain: dict[str, Any], *, shared: bool = False) -> Record:
    record, sketch = Record(shared=shared), Sketch()
    for name in _NUMBERS:
        setattr(sketch, name, whole(plain[name]))
    for name in _LOOKS:
        setattr(record, name, whole(plain[name]))
    for key, draws, features in plain["window"]:
        prompt = bytes.fromhex(key)
        sketch.window[prompt] = {text(f): whole(draw) for f, draw in features.items()}
        sketch.draws[prompt] = sorted({whole(draw) for draw in draws})
        sketch.recent.update(features.keys())
        if not 0 < len(sketch.draws[prompt]) <= MOST_ANSWERS:
            raise ValueError("a prompt without answers, or with too many")
    sketch.before_answers = sorted(map(whole, plain["before_answers"]))
    sketch.before = {text(f): whole(n) for f, n in plain["before"].items()}
    sketch.past = Counter({text(f): whole(n) for f, n in plain["past"].items()})
    if max(len(sketch.window), sketch.before_prompts) > WINDOW:
        raise ValueError(f"more than {WINDOW} prompts in a window")
    if len(sketch.before_answers) != sketch.before_prompts or 0 in sketch.before_answers:
        raise ValueError("prompts without answers")
    if sketch.past_prompts and not sketch.before_prompts:
        raise ValueError("a past without a last window")
    _at_most(sketch.before, sketch.before_prompts)
    _at_most(sketch.past, sketch.past_prompts)
    if len(plain["convicted"]) > MOST_CONVICTIONS:
        raise ValueError(f"more than {MOST_CONVICTIONS} convictions")
    for conviction in map(conviction_from, plain["convicted"]):
        record.convicted[conviction.feature] = conviction
    record.sketch = sketch
    return record


def conviction_from(plain: dict[str, Any]) -> Conviction:
    """Read one conviction of a record; raises ValueError if it is malformed."""
    if plain.keys() != _CONVICTION:
        raise ValueError(f"conviction with {sorted(plain)!r:.60}")
    hits, total, other_hits, other_total = (whole(plain[name]) for name in _COUNTS)
    p_value, feature = number(plain["p_value"], 0, 1), text(plain["feature"])
    if hits > total or other_hits > other_total or plain["kind"] != kind_of(feature):
        raise ValueError(f"conviction for {feature!r:.40}")
    if not isinstance(plain["shared"], bool):
        raise ValueError(f"conviction for {feature!r:.40}")
    return Conviction(
        feature, kind_of(feature), text(plain["phrase"]), hits, total, other_hits, other_total,
        p_value, plain["shared"],
    )  # fmt: skip


def _at_most(counts: dict[str, int], prompts: int) -> None:
    if max(counts.values(), default=0) > prompts:
        raise ValueError(f"a count above its {prompts} prompts")


NEWCOMERS: Final = "newcomers, counted together"


def stored_convictions(path: Path) -> dict[str, list[Conviction]]:
    """Return the convictions of each node, strongest first, by the node's printable name. Joint
    convictions of all newcomers have the name `NEWCOMERS`. Raises LedgerError if the file cannot be
    read."""
    found: dict[str, list[Conviction]] = {}
    try:
        for state in stored_states(path, RECURRENCE_VERIFIER).values():
            records = [(printable(name_bytes(n)), record) for n, record in _records(state)]
            with reading("recurrence"):
                if isinstance(state, dict):
                    records.append((NEWCOMERS, state["newcomers"]))
                for name, record in records:
                    found.setdefault(name, []).extend(map(conviction_from, record["convicted"]))
    except ValueError as error:
        raise LedgerError(f"{path}: {error}") from None
    return {name: sorted(each, key=lambda c: c.p_value) for name, each in found.items() if each}


def release_stored(path: Path, node: bytes) -> bool:
    """Forget everything that recurrence has counted about the node with this stored name; return
    whether it was known.

    The node keeps its seniority: as a newcomer it would be counted together with all others, and
    rejected for phrases of theirs.

    Raises:
        LedgerError: the file is missing, or cannot be read or written.
    """

    def forget(state: Any) -> bool:
        names = [name for name, _ in _records(state) if is_stored_as(name, node)]
        for name in names:
            fresh = Record()
            fresh.sketch.prompts, fresh.seen = SETTLED, state["clock"]
            state["nodes"][name] = record_to_dict(fresh)
        return bool(names)

    return change_states(path, RECURRENCE_VERIFIER, forget)


def _records(state: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and records of all nodes."""
    nodes = state.get("nodes") if isinstance(state, dict) else None
    if not isinstance(nodes, dict):
        return
    yield from list(nodes.items())
