"""What ``grpo-guard eval detect`` prints: progress while it works, the matrix at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from grpo_guard.evals.detect.config import Say
from grpo_guard.evals.detect.matrix import Row, rates
from grpo_guard.evals.detect.run import table

HEADER = ("completions", "verifier", "rejected", "rate", "95 % interval", "abstained")
_LINES = 10  # lines per kind of work where there is no terminal


@contextmanager
def reporter(console: Console) -> Iterator[Say]:
    """Yield a progress callback: bars on a terminal, about ten plain lines a step elsewhere."""
    if not console.is_terminal:
        yield _line_printer(console)
        return
    columns = (
        TextColumn("{task.description:<32}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as bars:
        tasks: dict[str, TaskID] = {}

        def say(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield say


def _line_printer(console: Console) -> Callable[[str, int, int], None]:
    shown: dict[str, int] = {}

    def say(what: str, done: int, total: int) -> None:
        step = done * _LINES // max(1, total)
        if step > shown.get(what, -1):
            shown[what] = step
            console.print(f"{what}: {done}/{total}", markup=False, highlight=False)

    return say


def print_table(console: Console, rows: Sequence[Row]) -> None:
    """Print the matrix: a table on a terminal, lines with tabs elsewhere."""
    lines = table(rates(rows))
    if not console.is_terminal:
        for line in (HEADER, *lines):
            print("\t".join(line))
        return
    shown = Table(*HEADER[:2])
    for name in HEADER[2:]:
        shown.add_column(name, justify="right")
    for line in lines:
        shown.add_row(*line)
    console.print(shown)
