"""``grpo-guard eval report DIR``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    directory: Annotated[Path, typer.Argument(help="Folder with a results.json.")],
) -> None:
    """Write DIR/report.html, one self-contained page, from DIR/results.json."""
    from grpo_guard.evals.report import write_report
    from grpo_guard.evals.results import ResultsError

    try:
        target = write_report(directory)
    except ResultsError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    except OSError as error:
        typer.echo(f"{directory}: {error}", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"wrote {target}")
