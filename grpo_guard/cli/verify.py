"""``grpo-guard verify``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from grpo_guard.completion import Completion

BATCH = 64


def verify(
    source: Annotated[
        Path, typer.Argument(metavar="IN.jsonl", help="One completion a line: prompt, text, ...")
    ],
    config: Annotated[Path, typer.Option("--config", "-c", help="The guard, as YAML.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="One verdict a line, same order.")],
) -> None:
    """Verify completions from a file, and tell the guard's ledger if it has one.

    Exit 0 also when some are rejected, 2 on bad input.
    """
    import json

    from grpo_guard.config import ConfigError, GuardConfig
    from grpo_guard.files import require_other, write_whole
    from grpo_guard.jsonl import InputError, read_completions
    from grpo_guard.supervise import supervised

    try:
        require_other(out, source, config)
        completions = read_completions(source)
        guard = GuardConfig.from_yaml(config).build()
    except (InputError, ConfigError, FileExistsError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    counts = {"accept": 0, "reject": 0, "abstain": 0}
    lines = [""] * len(completions)
    for rows in whole_groups(completions):
        batch = [completions[i] for i in rows]
        verdicts = supervised(guard.verifier, batch)
        if guard.ledger is not None:
            guard.ledger.record(batch, verdicts)
        for i, verdict in zip(rows, verdicts, strict=True):
            counts[verdict.outcome.value] += 1
            lines[i] = json.dumps({"index": i, **verdict.to_dict()}) + "\n"
    try:
        write_whole(out, "".join(lines))
    except OSError as error:
        typer.echo(f"{out}: expected a writable file, got {error.strerror}", err=True)
        raise typer.Exit(1) from None
    total = len(completions)
    summary = ", ".join(f"{name} {count}/{total}" for name, count in counts.items())
    typer.echo(f"{summary}; wrote {out}")


def whole_groups(completions: Sequence[Completion]) -> Iterator[list[int]]:
    """Places of completions, batch by batch, with those of one round and prompt together.

    What compares the completions of a group must see all of it, wherever in the file they stand.
    """
    groups: dict[str, list[int]] = {}
    for i, completion in enumerate(completions):
        groups.setdefault(repr((completion.round, completion.prompt)), []).append(i)
    batch: list[int] = []
    for rows in groups.values():
        batch += rows
        if len(batch) >= BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
