"""The counts of a swarm as plain JSON values, and back."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

from grpo_guard.content.recurrence.sketch import Sketch
from grpo_guard.content.recurrence.swarm import Conviction, Record, Swarm

FORMAT = 1
_NUMBERS = ("past_prompts", "before_prompts", "lost", "prompts")


def dump(swarm: Swarm) -> dict[str, Any]:
    """All records."""
    return {
        "format": FORMAT,
        "clock": swarm.clock,
        "nodes": {node: _record(record) for node, record in swarm.records.items()},
        "newcomers": _record(swarm.newcomers),
    }


def load(swarm: Swarm, state: dict[str, Any]) -> None:
    """Replace the swarm's records by those of ``state``.

    Raises:
        ValueError: ``state`` does not have the form that `dump` gives it.
    """
    if state.get("format") != FORMAT:
        raise ValueError(f"state: expected format {FORMAT}, got {state.get('format')!r:.80}")
    try:
        records = {str(node): _restored(r) for node, r in state["nodes"].items()}
        newcomers = _restored(state["newcomers"])
        clock = int(state["clock"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(
            f"state: expected what state_dict() gave, got {type(error).__name__}: {error!s:.80}"
        ) from None
    swarm.records, swarm.newcomers, swarm.clock = records, newcomers, clock


def _record(record: Record) -> dict[str, Any]:
    sketch = record.sketch
    return {
        **{name: getattr(sketch, name) for name in _NUMBERS},
        "window": [[key.hex(), sorted(fs)] for key, fs in sketch.window.items()],
        "before": dict(sketch.before),
        "past": dict(sketch.past),
        "looks": [record.looks, record.next_look, record.next_long, record.opened],
        "convicted": [asdict(c) for c in record.convicted.values()],
    }


def _restored(plain: dict[str, Any]) -> Record:
    record, sketch = Record(), Sketch()
    for name in _NUMBERS:
        setattr(sketch, name, int(plain[name]))
    for key, features in plain["window"]:
        kept = {str(f) for f in features}
        sketch.window[bytes.fromhex(key)] = kept
        sketch.recent.update(kept)
    sketch.before = {str(f): int(n) for f, n in plain["before"].items()}
    sketch.past = Counter({str(f): int(n) for f, n in plain["past"].items()})
    record.sketch = sketch
    looks = [int(n) for n in plain["looks"]]
    record.looks, record.next_look, record.next_long, record.opened = looks
    for conviction in plain["convicted"]:
        found = Conviction(**conviction)
        record.convicted[found.feature] = found
    return record
