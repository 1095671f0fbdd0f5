"""The tables of a benchmark on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table


def print_tables(console: Console, results: Mapping[str, Any]) -> None:
    """One table per comparison; ratios are to its first row."""
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
