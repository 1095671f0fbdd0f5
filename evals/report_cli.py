"""``grpo-guard eval report PLACE ...``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer


class Format(StrEnum):
    """What to write."""

    HTML = "html"
    MARKDOWN = "markdown"


_NAMES = {Format.HTML: "report.html", Format.MARKDOWN: "table.md"}


def report(
    places: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", help="Folders with a results.json, or such files."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", dir_okay=False, help="[default: report.html or table.md in DIR]"
        ),
    ] = None,
    form: Annotated[
        Format, typer.Option("--format", help="One self-contained page, or a table.")
    ] = Format.HTML,
) -> None:
    """Write one self-contained page, or a Markdown table, from one or more results."""
    from grpo_guard.evals.report import page_of
    from grpo_guard.evals.report_merge import load_all, merged
    from grpo_guard.evals.results import ResultsError, write_text
    from grpo_guard.evals.tables import markdown_table

    if out is None and (len(places) > 1 or places[0].suffix == ".json"):
        _fail(2, "-o: expected a file to write, got none")
    target = out or places[0] / _NAMES[form]
    try:
        html = form is Format.HTML
        write_text(target, page_of(places) if html else markdown_table(merged(load_all(places))))
    except ResultsError as error:
        _fail(2, str(error))
    except OSError as error:
        _fail(1, f"{target}: {error}")
    typer.echo(f"wrote {target}")


def _fail(code: int, message: str) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(code)
