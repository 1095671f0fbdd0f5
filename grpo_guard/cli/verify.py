"""``grpo-guard verify``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

BATCH = 64


def verify(
    source: Annotated[
        Path, typer.Argument(metavar="IN.jsonl", help="One completion a line: prompt, text, ...")
    ],
    config: Annotated[Path, typer.Option("--config", "-c", help="The guard, as YAML.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="One verdict a line, same order.")],
) -> None:
    """Verify completions from a file. Exit 0 also when some are rejected, 2 on bad input."""
    import json

    from grpo_guard.config import ConfigError, GuardConfig
    from grpo_guard.jsonl import InputError, read_completions
    from grpo_guard.supervise import supervised

    try:
        completions = read_completions(source)
        guard = GuardConfig.from_yaml(config).build()
    except (InputError, ConfigError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    counts = {"accept": 0, "reject": 0, "abstain": 0}
    partial = out.with_name(out.name + ".part")
    try:
        with partial.open("w", encoding="utf-8") as lines:
            for start in range(0, len(completions), BATCH):
                batch = completions[start : start + BATCH]
                for i, verdict in enumerate(supervised(guard.verifier, batch), start):
                    counts[verdict.outcome.value] += 1
                    lines.write(json.dumps({"index": i, **verdict.to_dict()}) + "\n")
        partial.replace(out)  # a complete file or none
    except OSError as error:
        typer.echo(f"{out}: expected a writable file, got {error.strerror}", err=True)
        raise typer.Exit(1) from None
    total = len(completions)
    summary = ", ".join(f"{name} {count}/{total}" for name, count in counts.items())
    typer.echo(f"{summary}; wrote {out}")
