"""``grpo-guard bench``."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console


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
    _print_tables(Console(), results)
    typer.echo(f"wrote {out}")


def _print_tables(console: Console, results: Mapping[str, Any]) -> None:
    """One table per comparison; ratios are to its first row."""
    from rich.table import Table

    for table in results["tables"]:
        shown = Table(title=table["name"], title_justify="left")
        for column in ("", "seconds", "ratio", "ratios in one round", "extra memory"):
            shown.add_column(column, justify="left" if not column else "right")
        for row in table["rows"]:
            memory = row["extra_mb"]
            shown.add_row(
                row["name"],
                f"{row['seconds']:.4g}",
                f"{row['ratio']:.2f}",
                f"{row['ratio_low']:.2f} to {row['ratio_high']:.2f}",
                "" if memory is None else f"{memory:.0f} MB",
            )
        console.print(shown)
        for name, value in table.get("notes", {}).items():
            console.print(f"{name}: {value:.2g}")
