"""``grpo-guard verify``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grpo_guard.cli.inputs import bad_input, whole_groups, writing

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

    from grpo_guard.config import GuardConfig
    from grpo_guard.files import require_other, write_whole
    from grpo_guard.jsonl import read_completions
    from grpo_guard.supervise import supervised

    with bad_input():
        require_other(out, source, config)
        completions = read_completions(source)
        guard = GuardConfig.from_yaml(config).build()
    counts = {"accept": 0, "reject": 0, "abstain": 0}
    lines = [""] * len(completions)
    for rows in whole_groups(completions, BATCH):
        batch = [completions[i] for i in rows]
        verdicts = supervised(guard.verifier, batch)
        if guard.ledger is not None:
            guard.ledger.record(batch, verdicts)
        for i, verdict in zip(rows, verdicts, strict=True):
            counts[verdict.outcome.value] += 1
            lines[i] = json.dumps({"index": i, **verdict.to_dict()}) + "\n"
    with writing(out):
        write_whole(out, "".join(lines))
    total = len(completions)
    summary = ", ".join(f"{name} {count}/{total}" for name, count in counts.items())
    typer.echo(f"{summary}; wrote {out}")
