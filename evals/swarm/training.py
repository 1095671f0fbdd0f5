"""One interruptible run: rounds, a checkpoint every few rounds, and a log of events.

A run's folder holds ``checkpoint.pt`` (weights, optimisers, the guard's and the attack's memory,
the rounds so far) and, once finished, ``run.json``. A run killed at any moment can resume from its
last checkpoint, and ends with the same figures as a run that was never interrupted.
"""

import json
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import torch

from grpo_guard.evals.swarm.engine import Swarm
from grpo_guard.evals.swarm.record import Round, kept

CHECKPOINT, EVENTS = "checkpoint.pt", "events.jsonl"
FORMAT = 2
# Maximum number of differing settings shown, and maximum number of characters of each value.
_SHOWN: Final = 3
_LONGEST: Final = 40


class Interrupted(KeyboardInterrupt):
    """Raised if Ctrl-C was pressed; the round in progress was finished and saved."""


class CheckpointError(RuntimeError):
    """Raised if a checkpoint belongs to a different run or cannot be read."""


def _log(folder: Path, event: str, **fields: Any) -> None:
    """Append an event with its time to the run's log, one JSON object per line."""
    line = json.dumps({"event": event, "time": round(time.time(), 3), **fields})
    with (folder / EVENTS).open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def row_of(done: Round) -> dict[str, Any]:
    """Convert a round to plain values, without its examples."""
    row = asdict(replace(done, shown=()))
    del row["shown"]
    return row


def train(
    swarm: Swarm,
    folder: Path,
    *,
    identity: dict[str, Any],
    every: int = 10,
    on_round: Callable[[dict[str, Any]], None] | None = None,
    stop: threading.Event | None = None,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Train to the end, starting from the folder's checkpoint if there is one.

    Args:
        folder: The run's folder; must exist.
        identity: The run's identity, as JSON values. Checkpoints with a different identity are
            refused.
        on_round: Called with each round's row, including the rounds in the checkpoint.
        stop: Event that, when set, ends the run after the round in progress.

    Returns:
        The rows of all rounds, and the examples to show.

    Raises:
        Interrupted: ``stop`` was set; all finished rounds are saved.
        CheckpointError: the folder's checkpoint belongs to a different run or is damaged.
        OSError: the disk is full; the last checkpoint is intact.
    """
    rows, examples = _resume(swarm, folder / CHECKPOINT, identity)
    for row in rows:
        if on_round is not None:
            on_round(row)
    begun = "resumed" if rows else "started"
    _log(folder, begun, iteration=len(rows), identity=identity)
    for iteration in range(len(rows), swarm.config.iterations):
        done = swarm.step(iteration)
        rows.append(row_of(done))
        examples = kept(examples, done.shown)
        _log(folder, "round", **rows[-1])
        if on_round is not None:
            on_round(rows[-1])
        stopped = stop is not None and stop.is_set()
        if stopped or (iteration + 1) % every == 0:
            _save(swarm, folder / CHECKPOINT, identity, rows, examples)
        if stopped and iteration + 1 < swarm.config.iterations:
            _log(folder, "interrupted", iteration=iteration + 1)
            raise Interrupted
    _log(folder, "finished", iteration=len(rows))
    return rows, examples


@contextmanager
def stop_on_interrupt() -> Iterator[threading.Event]:
    """Yield an event that is set by the first Ctrl-C; the second one interrupts immediately."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def heard(signum: int, frame: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = signal.signal(signal.SIGINT, heard)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


def _save(
    swarm: Swarm,
    path: Path,
    identity: dict[str, Any],
    rows: list[dict[str, Any]],
    examples: list[dict[str, Any]],
) -> None:
    """Write a new checkpoint, then replace the old one, which a full disk leaves intact."""
    run = {"rows": rows, "examples": examples, "identity": identity}
    data = {"format": FORMAT, "state": swarm.state(), "run": json.dumps(run)}
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            torch.save(data, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except RuntimeError as error:  # torch's own writer does not raise OSError
        raise OSError(f"{path}: expected to be writable, got {error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _resume(
    swarm: Swarm, path: Path, identity: dict[str, Any]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    if not path.is_file():
        return [], []
    try:
        # Read only tensors and plain values, so that a checkpoint cannot run code.
        data = torch.load(path, weights_only=True, map_location="cpu")
        found = data["format"]
        run = json.loads(data["run"])
    except Exception as error:
        raise CheckpointError(
            f"{path}: expected a checkpoint, got {type(error).__name__}: {error!s:.200}; "
            "delete it to restart this run"
        ) from error
    other = f"format {found}" if found != FORMAT else differences(identity, run.get("identity"))
    if other:
        raise CheckpointError(
            f"{path}: expected a checkpoint of this run, got one with {other}; "
            "choose another folder or delete it"
        )
    swarm.restore(data["state"])
    return run["rows"], run["examples"]


def differences(expected: Mapping[str, Any], found: Any) -> str:
    """List the first few differing fields, as in ``iterations 3 in place of 2``; can be empty."""
    if not isinstance(found, dict):
        return "no settings that can be read"
    ours, theirs = _flat(expected), _flat(found)
    names = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
    shown = [f"{n} {theirs.get(n, 'unsaid')} in place of {ours.get(n, 'none')}" for n in names]
    more = len(shown) - _SHOWN
    return ", ".join(shown[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _flat(identity: Mapping[str, Any]) -> dict[str, str]:
    config = identity.get("config")
    fields = {**identity, **(config if isinstance(config, dict) else {})}
    fields.pop("config", None)
    return {str(name): json.dumps(value)[:_LONGEST] for name, value in fields.items()}
