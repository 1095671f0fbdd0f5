"""The command ``grpo-guard bench``, which shows measurements as tables and writes them as JSON."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from grpo_guard.evals.cli import fail


def bench(
    out: Annotated[Path, typer.Option("--out", "-o", help="JSON file.", dir_okay=False)],
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Where to measure.")] = "cpu",
    model: Annotated[
        Path | None, typer.Option(help="Model folder for the end-to-end table.", file_okay=False)
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Times each variant runs.")] = 5,
    only: Annotated[str, typer.Option(help="Only comparisons whose name contains this text.")] = "",
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny sizes: shows that it runs, nothing more.")
    ] = False,
) -> None:
    """Time log-prob scoring against a matrix product and other methods."""
    from rich.console import Console

    from grpo_guard.evals.report.tables import Table, print_table
    from grpo_guard.evals.results import write_json
    from grpo_guard.evals.studies.bench.run import bench as run

    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            fail("bench: --device cuda: expected a CUDA GPU, found none")
    if model is not None and not (model / "config.json").is_file():
        fail(f"bench: --model {model}: expected a folder with config.json")
    progress, console = Console(stderr=True), Console()
    results = run(
        device, rounds=rounds, model=model, quick=quick, only=only,
        say=lambda text: progress.print(text, style="dim"),
    )  # fmt: skip
    write_json(out, results)
    header = ("", "seconds", "ratio", "ratios in one round", "extra memory")
    for table in results["tables"]:
        rows = [
            [
                row["name"],
                f"{row['seconds']:.4g}",
                f"{row['ratio']:.2f}",
                f"{row['ratio_low']:.2f} to {row['ratio_high']:.2f}",
                "" if row["extra_mb"] is None else f"{row['extra_mb']:.0f} MB",
            ]
            for row in table["rows"]
        ]
        print_table(console, Table(header, rows), table["name"])
    typer.echo(f"wrote {out}")


def main(arguments: Sequence[str]) -> None:
    """Run the command line on the arguments that follow the command's name."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(bench)
    app(arguments, prog_name="grpo-guard bench")
