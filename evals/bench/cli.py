"""``grpo-guard bench``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Device(StrEnum):
    """Where to measure."""

    CPU = "cpu"
    CUDA = "cuda"


def bench(
    out: Annotated[Path, typer.Option("--out", "-o", help="JSON file.", dir_okay=False)],
    device: Annotated[Device, typer.Option(help="Where to measure.")] = Device.CPU,
    model: Annotated[
        Path | None, typer.Option(help="Model folder for the end-to-end table.", file_okay=False)
    ] = None,
    vllm_python: Annotated[
        Path | None,
        typer.Option(help="Interpreter with vLLM, to compare with its prompt_logprobs."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Times each variant runs.")] = 5,
    only: Annotated[str, typer.Option(help="Only comparisons whose name holds this text.")] = "",
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny sizes: shows that it runs, nothing more.")
    ] = False,
) -> None:
    """Time the scoring against the bare product, the naive ways and peers, in one run."""
    from rich.console import Console

    from grpo_guard.evals.bench.console import print_tables
    from grpo_guard.evals.bench.run import bench as run
    from grpo_guard.evals.results import write_json

    console = Console(stderr=True)
    if device is Device.CUDA:
        import torch

        if not torch.cuda.is_available():
            typer.echo("bench: --device cuda: expected a CUDA GPU, found none", err=True)
            raise typer.Exit(2)
    if model is not None and not (model / "config.json").is_file():
        typer.echo(f"bench: --model {model}: expected a folder with config.json", err=True)
        raise typer.Exit(2)
    results = run(
        device.value,
        rounds=rounds,
        model=model,
        vllm_python=vllm_python,
        quick=quick,
        only=only,
        say=lambda text: console.print(text, style="dim"),
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    write_json(out, results)
    print_tables(Console(), results)
    typer.echo(f"wrote {out}")
