"""``grpo-guard demo``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class OnReject(StrEnum):
    """What a rejected completion earns."""

    DROP = "drop"
    ZERO = "zero"


def demo(
    out: Annotated[
        Path, typer.Option(help="Folder for results.json and report.html.", file_okay=False)
    ] = Path("grpo-guard-demo"),
    iterations: Annotated[
        int | None, typer.Option(min=1, help="Rounds of training, if not the preset's own.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Decides problems, samples and poison.")] = 0,
    on_reject: Annotated[
        OnReject, typer.Option(help="Leave a rejected completion out, or give it reward 0.")
    ] = OnReject.DROP,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="A smoke test: too short for the attack to take hold."),
    ] = False,
) -> None:
    """Poison a swarm of four nodes, then guard it: three short GRPO runs on bundled parts."""
    # Imported late so that `--help` stays fast; torch itself is loaded by the workers only.
    from importlib.util import find_spec

    from rich.console import Console

    from grpo_guard.evals.demo import DemoError, default_config, run_demo

    missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
    if missing:
        needs = " and ".join(missing)
        typer.echo(f"demo: needs {needs}; install grpo-guard[torch]", err=True)
        raise typer.Exit(1)
    config = default_config(seed, iterations, on_reject.value, quick=quick)
    command = f"grpo-guard demo --seed {seed} --iterations {config.iterations}"
    command += " --on-reject zero" if on_reject is OnReject.ZERO else ""
    command += " --quick" if quick else ""
    try:
        run_demo(out, config=config, console=Console(), command=command)
    except KeyboardInterrupt:
        typer.echo("\nstopped; nothing was written", err=True)
        raise typer.Exit(130) from None
    except (DemoError, OSError) as error:
        typer.echo(f"demo: {error}", err=True)
        raise typer.Exit(1) from None
